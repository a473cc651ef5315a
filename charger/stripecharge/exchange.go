package stripecharge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/stripe/stripe-go/v76"
)

// receive reads the answer's body and notes what it says, then hands stripe-go a body it can read.
func (x *exchange) receive(res *http.Response) *http.Response {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	_ = res.Body.Close() // read to its end or given up
	if err == nil && len(body) > maxAnswerBytes {
		err = fmt.Errorf("the answer is larger than %d bytes", maxAnswerBytes)
	}
	x.status, x.header, x.bodyErr = res.StatusCode, res.Header, err
	if err != nil {
		res.Body = io.NopCloser(failingReader{err})
		return res
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		x.failure = readFailure(res, body)
		if x.failure.Type == typeIntermediary {
			body = x.failure.rewritten()
			res.Header.Set("Stripe-Should-Retry", "false")
			// stripe-go takes everything below 400 for a success.
			res.StatusCode = max(res.StatusCode, http.StatusBadRequest)
		}
	}
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return res
}

// maxAnswerBytes bounds an answer's body; a page of 100 payment intents has about 300 KiB.
const maxAnswerBytes = 1 << 20

// typeIntermediary is the error type of answers that are not Stripe's.
const typeIntermediary = "intermediary_error"

// capMarker is a header by which a spend-cap proxy marks its own decisions; it wins over everything else.
const capMarker = "X-Spend-Cap-Decision"

// exchange is one HTTP call: what may be sent, and what came back. It travels in the context.
type exchange struct {
	op     Op
	secret string   // never to be shown
	frozen *Request // of a create
	gate   gate

	status  int // 0: no answer
	header  http.Header
	bodyErr error // the body did not arrive whole
	failure *failure
}

type exchangeKey struct{}

func withExchange(ctx context.Context, x *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// put replaces the body of req by the frozen bytes, after checking that it held them, in a form that
// net/http cannot send a second time.
func (r *Request) put(req *http.Request, g *gate) error {
	if req.Body == nil {
		return errors.New("frozen request: the library sent no body")
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, maxRequestBodyBytes+1))
	if err != nil {
		return fmt.Errorf("frozen request: read body: %w", err)
	}
	if !bytes.Equal(body, r.Body) || req.Method != http.MethodPost || !strings.HasSuffix(req.URL.Path, r.Path) ||
		req.Header.Get("Idempotency-Key") != r.IdempotencyKey || req.Header.Get("Stripe-Version") != r.APIVersion ||
		req.Header.Get("Content-Type") != formContentType {
		return errors.New("frozen request: the library would send something else")
	}
	req.Body = &gatedBody{reader: bytes.NewReader(r.Body), gate: g}
	req.ContentLength = int64(len(r.Body))
	// With GetBody and an Idempotency-Key net/http repeats the POST by itself when a reused connection dies.
	req.GetBody = nil
	return nil
}

// gatedBody refuses to be read on a connection that no gate guards. It shows net/http nothing but Read.
type gatedBody struct {
	reader io.Reader
	gate   *gate
}

func (b *gatedBody) Read(p []byte) (int, error) {
	if err := b.gate.guards(); err != nil {
		return 0, err
	}
	n, err := b.reader.Read(p)
	if left, ok := b.reader.(*bytes.Reader); ok && left.Len() == 0 {
		b.gate.bodyRead()
	}
	return n, err
}

func (b *gatedBody) Close() error { return nil }

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// answer puts together what is known once the call has returned; the class is decided afterwards.
func (x *exchange) answer(object *Object, err error) Answer {
	sent, refused := x.gate.sent()
	a := Answer{Op: x.op, Sent: sent || x.status != 0, HTTPStatus: x.status}
	if x.status == 0 {
		if err == nil {
			err = errors.New("no answer was received")
		}
		if refused != nil {
			err = refused
		}
		a.Err = x.transportError(err, a.Sent)
		a.Message = shortened(a.Err.Error())
		return a
	}
	x.fillHeaders(&a)
	switch {
	case x.bodyErr != nil:
		a.Unreadable = true
		a.Err = fmt.Errorf("%s: http status %d, answer cut short: %w", x.op, x.status, x.plain(x.bodyErr))
	case x.failure != nil:
		x.failure.fill(&a)
		a.Message = x.hide(a.Message)
		a.Err = a.failureError()
	case err != nil: // stripe-go's message quotes the body
		a.Unreadable = true
		a.Err = fmt.Errorf("%s: http status %d, the answer is not what was asked for", x.op, x.status)
	default:
		a.Object = object
		if object != nil {
			a.ErrorCode, a.DeclineCode, a.AdviceCode = object.failureCode, object.declineCode, object.adviceCode
			a.Message = x.hide(object.failureMessage)
		}
	}
	a.KeyEcho = x.keyEcho(a)
	return a
}

// keyEcho compares the key that Stripe says it took with the one that was sent.
func (x *exchange) keyEcho(a Answer) KeyEcho {
	if x.frozen == nil {
		return ""
	}
	switch told := x.header.Get("Idempotency-Key"); {
	case told == x.frozen.IdempotencyKey:
		return KeyEchoed
	case told != "":
		return KeyChanged
	case a.Object != nil && a.Object.ID != "" && strings.HasPrefix(a.RequestID, requestIDPrefix):
		return KeyNotEchoed
	}
	return ""
}

func (x *exchange) fillHeaders(a *Answer) {
	a.RequestID = shortened(x.header.Get("Request-Id"))
	a.Replayed = strings.EqualFold(x.header.Get("Idempotent-Replayed"), "true")
	a.RateLimit = shortened(x.header.Get("Stripe-Rate-Limited-Reason"))
	if date, err := http.ParseTime(x.header.Get("Date")); err == nil {
		a.Date = date
	}
}

// transportError says what kept the call from an answer, without the URL, which names the customer.
func (x *exchange) transportError(err error, sent bool) error {
	if local, ok := errors.AsType[*localError](err); ok && !sent {
		return local
	}
	if sent {
		return fmt.Errorf("%s: sent, no answer: %w", x.op, x.plain(err))
	}
	return fmt.Errorf("%s: not sent: %w", x.op, x.plain(err))
}

// plain keeps of an error what Decide asks for and hides the key, should a proxy have echoed it.
func (x *exchange) plain(err error) error {
	text := x.hide(withoutURL(err).Error())
	if isTimeout(err) {
		return &timeoutError{text}
	}
	return errors.New(text)
}

func (x *exchange) hide(text string) string {
	if x.secret != "" {
		text = strings.ReplaceAll(text, x.secret, redacted)
	}
	return shortened(text)
}

const redacted = "[redacted]"

// timeoutError is any time-out or cancellation, by its text alone.
type timeoutError struct{ text string }

func (e *timeoutError) Error() string { return e.text }

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// withoutURL drops the address that net/http puts in front of its errors.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// failure is what an answer of 300 and above says.
type failure struct {
	Type          string      `json:"type"`
	Code          string      `json:"code"`
	DeclineCode   string      `json:"decline_code"`
	AdviceCode    string      `json:"advice_code"`
	Param         string      `json:"param"`
	Message       string      `json:"message"`
	Charge        idOrObject  `json:"charge"`
	PaymentIntent *wireObject `json:"payment_intent"`
	Unreadable    bool        `json:"-"`
}

// readFailure reads Stripe's error object, or makes up an intermediary's from whatever came instead.
func readFailure(res *http.Response, body []byte) *failure {
	var envelope struct {
		Error json.RawMessage `json:"error"`
	}
	f := new(failure)
	parsed := json.Unmarshal(body, &envelope) == nil
	fromStripe := parsed && json.Unmarshal(envelope.Error, f) == nil && isStripeType(f.Type)
	if fromStripe && res.Header.Get(capMarker) == "" && res.StatusCode >= http.StatusBadRequest {
		return f
	}
	made := &failure{
		Type: typeIntermediary, Code: "intermediary_" + strconv.Itoa(res.StatusCode), Message: f.Message,
		// A request id without an error of Stripe's: something changed Stripe's own answer on the way.
		Unreadable: !fromStripe && strings.HasPrefix(res.Header.Get("Request-Id"), requestIDPrefix) && res.Header.Get(capMarker) == "",
	}
	var text string
	switch {
	case made.Message != "":
	case parsed && json.Unmarshal(envelope.Error, &text) == nil && text != "":
		made.Message = text
	default:
		made.Message = fmt.Sprintf("answer of %d bytes, content type %q, that is not Stripe's", len(body), shortened(res.Header.Get("Content-Type")))
	}
	return made
}

const requestIDPrefix = "req_"

// isStripeType knows the types of Stripe's error objects, past ones included.
func isStripeType(name string) bool {
	switch stripe.ErrorType(name) {
	case stripe.ErrorTypeAPI, stripe.ErrorTypeCard, stripe.ErrorTypeIdempotency, stripe.ErrorTypeInvalidRequest,
		"rate_limit_error", "authentication_error", "api_connection_error":
		return true
	}
	return false
}

func (f *failure) rewritten() []byte {
	body, err := json.Marshal(map[string]any{"error": map[string]string{"type": f.Type, "code": f.Code, "message": f.Message}})
	if err != nil {
		panic("stripecharge: internal error: three strings cannot be encoded: " + err.Error())
	}
	return body
}

func (f *failure) fill(a *Answer) {
	a.ErrorType, a.ErrorCode, a.DeclineCode, a.AdviceCode = shortened(f.Type), shortened(f.Code), shortened(f.DeclineCode), shortened(f.AdviceCode)
	a.Param, a.Message, a.Unreadable = shortened(f.Param), f.Message, f.Unreadable
	switch {
	case f.PaymentIntent != nil && f.PaymentIntent.ID != "":
		a.Object = f.PaymentIntent.object()
	case f.Charge != "":
		id := string(f.Charge)
		a.Object = &Object{Kind: KindCharge, ID: id, ChargeID: id}
	}
}

func (a Answer) failureError() error {
	words := []string{string(a.Op) + ": http status " + strconv.Itoa(a.HTTPStatus)}
	for _, word := range []string{a.ErrorType, a.ErrorCode, a.DeclineCode, a.RequestID} {
		if word != "" {
			words = append(words, word)
		}
	}
	return errors.New(strings.Join(words, " ") + ": " + a.Message)
}
