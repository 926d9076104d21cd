//! The languages' runtime clients, as `layer/tests/install` installs them.

use std::path::{Path, PathBuf};

use testkit::skip::skip;

/// A language with its official runtime client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Runtime {
    Python,
    Node,
    Java,
    Go,
    Rust,
}

/// The Java property with the path of the unpacked native library of Java's client.
const JNI: &str = "com.amazonaws.services.lambda.runtime.api.client.runtimeapi.NativeClient.JNI";

impl Runtime {
    pub(crate) const ALL: [Self; 5] = [Self::Python, Self::Node, Self::Java, Self::Go, Self::Rust];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Java => "java",
            Self::Go => "go",
            Self::Rust => "rust",
        }
    }

    /// Whether this runtime's client can stream a response.
    pub(crate) fn streams(self) -> bool {
        matches!(self, Self::Node | Self::Go)
    }

    /// Whether the installed client asks for several invocations at a time on Managed Instances. Node's client does so
    /// only from version 4, which needs Node 22. Rust's client does so only with its feature `concurrency-tokio`.
    pub(crate) fn is_concurrent(self) -> bool {
        !matches!(self, Self::Node | Self::Rust)
    }

    /// The type of an error as the client reports it.
    pub(crate) fn error_type(self, name: &str) -> String {
        match self {
            Self::Java => format!("bench.App${name}"),
            _ => name.into(),
        }
    }

    fn folder(self) -> PathBuf {
        project().join("target/layer-tests").join(self.name())
    }

    /// Whether the client is installed. Panics in CI if it isn't.
    pub(crate) fn is_installed(self) -> bool {
        if self == Self::Rust {
            return true;
        }
        let is_installed = self.folder().with_extension("installed").is_file();
        if !is_installed {
            skip(format_args!(
                "{0}'s runtime client is missing: run layer/tests/install {0}, which lists its own requirements",
                self.name()
            ));
        }
        is_installed
    }

    /// The shell command that sets the function's environment, and starts the function with the entry point `handler`.
    pub(crate) fn command(self, handler: &str, layer: &str) -> String {
        let folder = self.folder();
        let shown = folder.display();
        let start = match self {
            Self::Python => format!("python3 -m awslambdaric app.{handler}"),
            Self::Node => format!("{shown}/node_modules/.bin/aws-lambda-ric app.{handler}"),
            Self::Java => format!(
                "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -D{JNI}=$(ls {shown}/jni/*.so) \
                 -cp '{shown}/classes:{shown}/lib/*' com.amazonaws.services.lambda.runtime.api.client.AWSLambda bench.App::handleRequest"
            ),
            Self::Go => format!("{shown}/function"),
            Self::Rust => {
                let program = own_program();
                // The function in Rust needs no folder.
                let program = program.display();
                return format!("exec {layer}{program} --ignored --exact --nocapture rust::as_a_function");
            }
        };
        // A test sets `CODE` to run a function in another folder.
        format!(
            "cd ${{CODE:-{shown}}} && export _HANDLER=app.{handler} PYTHONPATH={shown} && exec {layer}{start}"
        )
    }
}

/// The path of this program, which is also the function in Rust.
pub(crate) fn own_program() -> PathBuf {
    std::env::current_exe().expect("this program's path")
}

/// The project's folder.
pub(crate) fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the project's folder")
}
