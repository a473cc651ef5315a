// Package stripecharge makes one HTTP call to Stripe from frozen bytes and classifies the answer.
package stripecharge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/form"
)

// Create sends r, exactly its bytes under its key, and classifies the answer. It returns once Stripe
// answered, the call's timeout passed or ctx ended, and makes at most one HTTP request.
//
// No complete request leaves after sendBefore, however long the dial took or the process slept: the
// check is made in the connection's Write. sendBefore must come from time.Now of this process; it is
// held against the monotonic and the wall clock, whichever is later.
func (c *Client) Create(ctx context.Context, r Request, sendBefore time.Time) Answer {
	if err := r.check(); err != nil {
		return refusedHere(OpCreate, err)
	}
	if sendBefore.IsZero() {
		return refusedHere(OpCreate, errors.New("create: no time given before which the request must leave"))
	}
	x := &exchange{op: OpCreate, secret: c.key, frozen: &r, gate: gate{sendBefore: sendBefore}}
	object := new(wireObject)
	header := http.Header{"Content-Type": {formContentType}, "Stripe-Version": {r.APIVersion}}
	params := stripe.Params{IdempotencyKey: &r.IdempotencyKey, Headers: header}
	return c.run(ctx, x, func(ctx context.Context) (*Object, error) {
		params.Context = ctx
		// CallMultipart is the one call of the library that takes an encoded body as it is.
		err := c.backend.CallMultipart(http.MethodPost, r.Path, c.key, "", bytesBuffer(r.Body), &params, object)
		return object.object(), err
	}, r)
}

// Read fetches the payment intent (pi_) or charge (ch_, py_) with this id as it stands now, with the
// refund and dispute of a payment intent's charge. The answer's class knows no request yet: hold it
// against one with Decide.
func (c *Client) Read(ctx context.Context, id string) Answer {
	path, expand, err := pathOfObject(id)
	if err != nil {
		return refusedHere(OpRead, err)
	}
	query := &form.Values{}
	if expand != "" {
		query.Add("expand[]", expand)
	}
	answer := c.runObject(ctx, OpRead, http.MethodGet, path, query)
	return answer.about(id)
}

// Cancel cancels the payment intent with this id, so that nobody can pay it any more. When Stripe
// refuses because the payment intent already went through or is cancelled, the answer carries it.
func (c *Client) Cancel(ctx context.Context, id string) Answer {
	path, _, err := pathOfObject(id)
	if err == nil && !strings.HasPrefix(id, prefixIntent) {
		err = fmt.Errorf("cancel %s: only payment intents can be cancelled", id)
	}
	if err != nil {
		return refusedHere(OpCancel, err)
	}
	answer := c.runObject(ctx, OpCancel, http.MethodPost, path+"/cancel", &form.Values{})
	return answer.about(id)
}

// DefaultTimeout bounds one HTTP call from dial to the last byte of the answer.
const DefaultTimeout = 30 * time.Second

// maxTimeout keeps a mistyped timeout from holding a worker for hours.
const maxTimeout = 5 * time.Minute

const formContentType = "application/x-www-form-urlencoded"

// Config is what a Client needs. It holds the key: it prints itself without.
type Config struct {
	Transport *Transport    // shared by all clients of a process; required
	URL       string        // of Stripe or of the spend-cap proxy, a path prefix is kept; empty: Stripe itself
	Key       string        // the vault key, sent as bearer token
	Timeout   time.Duration // of one HTTP call; 0: DefaultTimeout
	Logger    *slog.Logger  // one debug line for each call, without bodies; nil: none
}

// LogValue shows the configuration without its key.
func (c Config) LogValue() slog.Value {
	return slog.GroupValue(slog.String("url", c.URL), slog.String("key", redacted), slog.Duration("timeout", c.Timeout))
}

// String shows the configuration without its key.
func (c Config) String() string {
	return "stripecharge.Config{URL: " + c.URL + ", Key: " + redacted + "}"
}

// GoString is String, so that %#v shows no key either.
func (c Config) GoString() string { return c.String() }

// Client calls Stripe with one key. It is made without any network call, is safe for concurrent use
// and needs no closing; the connections belong to the Transport.
type Client struct {
	backend stripe.Backend
	key     string
	url     string
	logger  *slog.Logger
}

// New makes the client of one key.
func New(cfg Config) (*Client, error) {
	if cfg.URL == "" {
		cfg.URL = stripe.APIURL
	}
	if err := checkURL(cfg.URL); err != nil {
		return nil, err
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	switch {
	case cfg.Transport == nil:
		return nil, errors.New("stripe client: no transport, make one NewTransport for the process")
	case cfg.Key == "":
		return nil, errors.New("stripe client: no key")
	case strings.ContainsFunc(cfg.Key, notKeyRune):
		return nil, errors.New("stripe client: the key holds a space, a line break or another character that no key has")
	case cfg.Timeout < 0 || cfg.Timeout > maxTimeout:
		return nil, fmt.Errorf("stripe client: timeout %s is not within 0 and %s", cfg.Timeout, maxTimeout)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Client{
		key: cfg.Key, url: cfg.URL, logger: cfg.Logger,
		backend: stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
			URL: new(cfg.URL),
			HTTPClient: &http.Client{
				Transport: cfg.Transport,
				Timeout:   cfg.Timeout,
				// A followed redirect turns the POST of a charge into a GET that answers 200.
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			},
			MaxNetworkRetries: new(int64(0)), // one attempt is one call; the job queue repeats
			EnableTelemetry:   new(false),
			LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull}, // it would log whole error bodies
		}),
	}, nil
}

// String shows the client without its key.
func (c *Client) String() string { return "stripecharge.Client{" + c.url + "}" }

// GoString is String, so that %#v shows no key either.
func (c *Client) GoString() string { return c.String() }

// runObject makes one call whose answer is one object.
func (c *Client) runObject(ctx context.Context, op Op, method, path string, query *form.Values) Answer {
	object := new(wireObject)
	return c.run(ctx, &exchange{op: op, secret: c.key}, func(ctx context.Context) (*Object, error) {
		err := c.backend.CallRaw(method, path, c.key, query, &stripe.Params{Context: ctx}, object)
		return object.object(), err
	}, Request{})
}

// run makes the call under x and turns what happened into an answer.
func (c *Client) run(ctx context.Context, x *exchange, call func(context.Context) (*Object, error), r Request) Answer {
	started := time.Now()
	object, err := call(withExchange(ctx, x))
	answer := x.answer(object, err)
	answer.Took = time.Since(started)
	answer.Class = Decide(answer, r)
	c.logger.LogAttrs(ctx, slog.LevelDebug, "called stripe",
		slog.String("operation", string(x.op)), slog.String("class", string(answer.Class)), slog.Int("http_status", answer.HTTPStatus),
		slog.String("request_id", answer.RequestID), slog.Bool("replayed", answer.Replayed), slog.Duration("took", answer.Took))
	return answer
}

const (
	prefixIntent  = "pi_"
	prefixCharge  = "ch_"
	prefixPayment = "py_"
)

const maxIDBytes = 255

// isID reports whether id begins with one of the prefixes and holds nothing that a path would change.
func isID(id string, prefixes ...string) bool {
	for _, prefix := range prefixes {
		if rest, ok := strings.CutPrefix(id, prefix); ok {
			return rest != "" && len(id) <= maxIDBytes && !strings.ContainsFunc(rest, notIDRune)
		}
	}
	return false
}

func notIDRune(r rune) bool {
	return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

// pathOfObject is where an object is read, and which field of it is worth expanding.
func pathOfObject(id string) (path, expand string, err error) {
	switch {
	case !isID(id, prefixIntent, prefixCharge, prefixPayment):
		return "", "", fmt.Errorf("object id %q is not that of a payment intent or a charge", shortened(id))
	case strings.HasPrefix(id, prefixIntent):
		return "/v1/payment_intents/" + id, "latest_charge", nil
	default:
		return "/v1/charges/" + id, "", nil
	}
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return errors.New("stripe client: the URL cannot be parsed")
	}
	if (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("stripe client: the URL must be http(s)://host[:port][/prefix], without user, query or fragment")
	}
	return nil
}

// notKeyRune reports characters that would break the Authorization header.
func notKeyRune(r rune) bool { return r <= ' ' || r > '~' }
