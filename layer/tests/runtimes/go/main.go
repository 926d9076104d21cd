// The function under test, in Go. See ../README.md.
package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

var ledger = os.Getenv("LEDGER")

// Declined and Unavailable are the two types of errors. The runtime client reports the type's name.
type Declined struct{ text string }

func (e *Declined) Error() string { return e.text }

type Unavailable struct{ text string }

func (e *Unavailable) Error() string { return e.text }

type answer map[string]any

// note appends a line in one write, which a kill can't halve or undo.
func note(what, key, run string) {
	file, err := os.OpenFile(ledger, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if _, err := fmt.Fprintf(file, "%s %s %s\n", what, key, run); err != nil {
		panic(err)
	}
}

func runs(key string) int {
	text, err := os.ReadFile(ledger)
	if err != nil {
		panic(err)
	}
	return strings.Count("\n"+string(text), "\nrun "+key+" ")
}

type order struct {
	ID string `json:"id"`
	Do string `json:"do"`
	// All fields of the event, for the step `see`.
	all map[string]json.RawMessage
}

func (o order) play(ctx context.Context, run string) (answer, error) {
	note("run", o.ID, run)
	given := answer{"id": o.ID, "run": run}
	steps := o.Do
	if steps == "" {
		steps = "effect"
	}
	for _, step := range strings.Fields(steps) {
		if rest, isFirst := strings.CutPrefix(step, "first-"); isFirst {
			if runs(o.ID) > 1 {
				continue
			}
			step = rest
		}
		words := strings.Split(step, ":")
		number := func(at int) int {
			if len(words) <= at {
				return 0
			}
			n, _ := strconv.Atoi(words[at])
			return n
		}
		switch words[0] {
		case "effect":
			note("effect", o.ID, run)
		case "sleep":
			time.Sleep(time.Duration(number(1)) * time.Millisecond)
		case "error":
			text := "as the event asks"
			if len(words) > 2 {
				text = strings.Repeat("x", number(2))
			}
			if words[1] == "Declined" {
				return nil, &Declined{text}
			}
			return nil, &Unavailable{text}
		case "exit":
			os.Exit(number(1))
		case "kill":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			time.Sleep(time.Minute)
		case "big":
			given["pad"] = strings.Repeat("x", number(1))
		case "context":
			given["context"] = about(ctx)
		case "see":
			given["see"] = o.all[words[1]]
		case "text":
			given["text"] = true
		case "status":
			given["status"] = number(1)
		default:
			return nil, errors.New("unknown step: " + step)
		}
	}
	return given, nil
}

func about(ctx context.Context) answer {
	found, _ := lambdacontext.FromContext(ctx)
	deadline, _ := ctx.Deadline()
	trace, _ := ctx.Value("x-amzn-trace-id").(string)
	return answer{
		"request_id":    found.AwsRequestID,
		"arn":           found.InvokedFunctionArn,
		"tenant":        orNull(found.TenantID),
		"trace":         orNull(trace),
		"client":        found.ClientContext.Custom,
		"identity":      orNull(found.Identity.CognitoIdentityID),
		"has_time_left": time.Until(deadline) > 0,
	}
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

type event struct {
	order
	Body            string          `json:"body"`
	IsBase64Encoded bool            `json:"isBase64Encoded"`
	RequestContext  json.RawMessage `json:"requestContext"`
	Records         []record        `json:"Records"`
}

type record struct {
	EventSource string            `json:"eventSource"`
	MessageID   string            `json:"messageId"`
	Body        string            `json:"body"`
	Attributes  map[string]string `json:"attributes"`
	Kinesis     *struct {
		SequenceNumber string `json:"sequenceNumber"`
		Data           []byte `json:"data"`
	} `json:"kinesis"`
	DynamoDB *struct {
		SequenceNumber string
		NewImage       map[string]struct{ S string }
	} `json:"dynamodb"`
}

func (e *event) UnmarshalJSON(text []byte) error {
	type plain event
	if err := json.Unmarshal(text, (*plain)(e)); err != nil {
		return err
	}
	return json.Unmarshal(text, &e.all)
}

func handle(ctx context.Context, given event) (any, error) {
	found, _ := lambdacontext.FromContext(ctx)
	run := fmt.Sprintf("%s/%d", found.AwsRequestID, os.Getpid())
	switch {
	case given.Records != nil:
		return batch(ctx, given.Records, run)
	case given.RequestContext != nil:
		return http(ctx, given, run)
	}
	return given.play(ctx, run)
}

// stream runs an event that's one operation, as handle does, and streams the answer in chunks.
func stream(ctx context.Context, given event) (io.Reader, error) {
	found, _ := lambdacontext.FromContext(ctx)
	answer, err := given.play(ctx, fmt.Sprintf("%s/%d", found.AwsRequestID, os.Getpid()))
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(answer)
	return &chunks{bytes.NewReader(text)}, err
}

// chunks is a reader without other methods or fields, so that the client streams it.
type chunks struct{ text *bytes.Reader }

func (c *chunks) Read(into []byte) (int, error) { return c.text.Read(into) }

func http(ctx context.Context, given event, run string) (any, error) {
	body := []byte(given.Body)
	if given.IsBase64Encoded {
		body, _ = base64.StdEncoding.DecodeString(given.Body)
	}
	var asked order
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, err
	}
	played, err := asked.play(ctx, run)
	if err != nil {
		return nil, err
	}
	status, kind := 201, "application/json"
	if asked, has := played["status"].(int); has {
		status = asked
	}
	delete(played, "status")
	text, err := json.Marshal(played)
	if played["text"] == true {
		text, kind = []byte("run "+run), "text/plain"
	}
	return answer{"statusCode": status, "headers": answer{"content-type": kind}, "body": string(text)}, err
}

func batch(ctx context.Context, records []record, run string) (any, error) {
	failures := []answer{}
	_, isWhole := os.LookupEnv("WHOLE")
	for _, record := range records {
		_, hasGroup := record.Attributes["MessageGroupId"]
		isOrdered := record.EventSource != "aws:sqs" || hasGroup
		name, asked, err := record.open()
		if err == nil && (!isOrdered || len(failures) == 0) {
			_, err = asked.play(ctx, run)
		} else if err == nil {
			err = errors.New("an earlier record failed")
		}
		if err != nil && isWhole {
			return nil, err
		}
		if err != nil {
			failures = append(failures, answer{"itemIdentifier": name})
		}
	}
	if isWhole {
		return nil, nil
	}
	return answer{"batchItemFailures": failures}, nil
}

// open returns the identifier that reports this record as failed, and the record's order.
func (r record) open() (string, order, error) {
	var asked order
	switch {
	case r.Kinesis != nil:
		err := json.Unmarshal(r.Kinesis.Data, &asked)
		return r.Kinesis.SequenceNumber, asked, err
	case r.DynamoDB != nil:
		image := r.DynamoDB.NewImage
		return r.DynamoDB.SequenceNumber, order{ID: image["id"].S, Do: image["do"].S}, nil
	}
	err := json.Unmarshal([]byte(r.Body), &asked)
	return r.MessageID, asked, err
}

func main() {
	switch os.Getenv("INIT") {
	case "error":
		panic("the function can't start")
	case "exit":
		os.Exit(7)
	}
	if strings.HasSuffix(os.Getenv("_HANDLER"), "stream") {
		lambda.Start(stream)
	}
	lambda.Start(handle)
}
