"""Draws bars as an SVG file: groups of bars, each group with its own scale. For scripts/bench-instructions and bench-best."""
import html

# Widths in units, which are about pixels on a phone.
WIDTH, EDGE, LABELS = 400, 8, 96
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:11px}.hand{fill:#afb8c1}.ours{fill:#0969da}.back{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.hand{fill:#57606a}.ours{fill:#4493f8}.back{fill:#0d1117}}"
)


def draw(path, title, legend, groups):
    """A group: its name, a note at the right, and bars. A bar: whether it's the library's, its label, its value, and its text."""
    parts, y = [f'<text x="{EDGE}" y="18">{html.escape(legend)}</text>'], 28
    for name, note, bars in groups:
        parts.append(f'<text x="{EDGE}" y="{y + 16}">{html.escape(name)}</text><text x="{WIDTH - EDGE}" y="{y + 16}" text-anchor="end">{note}</text>')
        y += 22
        left = EDGE + (LABELS if any(label for _, label, _, _ in bars) else 0)
        room = WIDTH - EDGE - left - (70 if left > EDGE else 0)
        most = max(value for _, _, value, _ in bars)
        for is_ours, label, value, text in bars:
            width = max(1, round(room * value / most))
            height = 14 if label else 8
            parts.append(f'<rect class="{"ours" if is_ours else "hand"}" x="{left}" y="{y}" width="{width}" height="{height}"/>')
            if label:
                parts.append(
                    f'<text class="small" x="{EDGE}" y="{y + 11}">{html.escape(label)}</text>'
                    f'<text class="small" x="{left + width + 4}" y="{y + 11}">{html.escape(text)}</text>'
                )
            y += height + 2 + (2 if label else 0)
        y += 8
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect class="back" width="{WIDTH}" height="{y}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
