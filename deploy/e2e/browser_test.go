package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// stepTimeout bounds one look at a page; a cold Chromium beside a busy Postgres takes seconds.
const stepTimeout = 60 * time.Second

// browser is one headless Chromium with an empty profile. It answers a password prompt as a person does, with what
// login said last, and remembers whatever its console complained about.
type browser struct {
	ctx context.Context
	tab *chromedp.Target

	mu         sync.Mutex
	user       string
	password   string
	prompted   map[fetch.RequestID]bool
	complaints []string
	asked      []string       // URL of every request
	answered   map[string]int // status of documents by URL
	unexpected []error
}

// startBrowser ends with the test, and leaves a screenshot of what it shows if that fails.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(chromium(t)), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1400, 1000),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.WSURLReadTimeout(stepTimeout),
		// Whatever a page wants from elsewhere must not be had.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"))
	allocator, endAllocator := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(endAllocator)
	ctx, endBrowser := chromedp.NewContext(allocator)
	t.Cleanup(endBrowser)
	b := &browser{answered: map[string]int{}, prompted: map[fetch.RequestID]bool{}}
	b.ctx = ctx
	require.NoError(t, chromedp.Do(ctx), "start Chromium")
	b.tab = chromedp.FromContext(ctx).Target
	require.NoError(t, chromedp.Listen(ctx, b.hear))
	b.do(t, "listen to Chromium", command(network.Enable, network.EnableParams{}), command(log.Enable, cdp.Empty{}),
		command(runtime.Enable, cdp.Empty{}), command(fetch.Enable, fetch.EnableParams{HandleAuthRequests: new(true)}))
	return b
}

// chromium is the browser's program. Where it is missing the test is left out, and says so; in CI it fails.
func chromium(t *testing.T) string {
	t.Helper()
	const missing = "no Chromium found: install it (apt-get install chromium) or set CHROME_PATH to the program"
	if given := os.Getenv("CHROME_PATH"); given != "" {
		path, err := exec.LookPath(given)
		require.NoError(t, err, "CHROME_PATH")
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome-stable", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if ci := os.Getenv("CI"); ci != "" && ci != "false" {
		require.FailNow(t, missing)
	}
	t.Skip("left out: " + missing)
	return ""
}

// do takes the steps, and fails the test with a picture if one of them does not succeed in time.
func (b *browser) do(t *testing.T, what string, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(b.ctx, stepTimeout, fmt.Errorf("not seen within %s", stepTimeout))
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.picture(t)
		require.NoError(t, errors.Join(err, context.Cause(ctx)), what)
	}
}

// picture saves what the browser shows.
func (b *browser) picture(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Logf("no screenshot: %v", err)
		return
	}
	path := filepath.Join(t.ArtifactDir(), "page.png")
	if err := os.WriteFile(path, png, 0o600); err != nil {
		t.Logf("no screenshot: %v", err)
		return
	}
	t.Logf("the browser showed %s (kept with go test -artifacts)", path)
}

// login is what the browser answers to password prompts from now on; an empty user leaves them.
func (b *browser) login(user, password string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.user, b.password = user, password
}

// open goes to the page and waits until its text holds all of wanted.
func (b *browser) open(t *testing.T, address string, wanted ...string) {
	t.Helper()
	b.do(t, "open "+address, chromedp.Navigate(address))
	b.see(t, wanted...)
}

// see waits until the page's visible text holds all of wanted. It asks again and again from outside: a page under a
// content policy cannot be made to wait for itself.
func (b *browser) see(t *testing.T, wanted ...string) {
	t.Helper()
	for _, text := range wanted {
		b.do(t, "see "+text, chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for {
				visible, err := chromedp.Evaluate[string]("document.body ? document.body.innerText : ''")(ctx, tab)
				if err == nil && strings.Contains(visible, text) {
					return nil
				}
				select {
				case <-ctx.Done():
					return errors.Join(ctx.Err(), err)
				case <-tick.C:
				}
			}
		}))
	}
}

// text is all that the page holds now, visible or not.
func (b *browser) text(t *testing.T) string {
	t.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.documentElement.textContent"))
	require.NoError(t, err)
	return text
}

// status is how the server answered the last request for this document.
func (b *browser) status(address string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answered[address]
}

// requireQuiet fails if a page broke the content policy, raised an error, or asked anybody but the given server.
func (b *browser) requireQuiet(t *testing.T, server string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(t, b.complaints, "complaints in the browser's console")
	require.Empty(t, b.unexpected, "steps of the browser that failed")
	own, err := url.Parse(server)
	require.NoError(t, err)
	for _, asked := range b.asked {
		u, err := url.Parse(asked)
		require.NoError(t, err)
		require.True(t, u.Host == own.Host || u.Scheme == "data" || u.Scheme == "blob", "a page asked %s", asked)
	}
}

func (b *browser) hear(event any) {
	switch e := event.(type) {
	case *fetch.EventRequestPaused:
		// Not from here: a listener must not wait for the browser.
		go func() {
			b.sent(cdp.Call(b.ctx, b.tab, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: e.RequestID}))
		}()
	case *fetch.EventAuthRequired:
		answer := fetch.ContinueWithAuthParams{RequestID: e.RequestID, AuthChallengeResponse: b.answerPrompt(e.RequestID)}
		go func() { b.sent(cdp.Call(b.ctx, b.tab, fetch.ContinueWithAuth, answer)) }()
	case *network.EventRequestWillBeSent:
		b.keep(func() { b.asked = append(b.asked, e.Request.URL) })
	case *network.EventResponseReceived:
		if e.Type == network.ResourceTypeDocument {
			b.keep(func() { b.answered[e.Response.URL] = int(e.Response.Status) })
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			b.complain(string(e.Entry.Source) + ": " + e.Entry.Text + " " + e.Entry.URL)
		}
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if thrown := e.ExceptionDetails.Exception; thrown != nil {
			text += " " + thrown.Description
		}
		b.complain("exception: " + text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError {
			var words []string
			for _, argument := range e.Args {
				words = append(words, string(argument.Value)+argument.Description)
			}
			b.complain("console.error: " + strings.Join(words, " "))
		}
	}
}

// answerPrompt gives the login once; when it is refused and the browser prompts again, it leaves the prompt.
func (b *browser) answerPrompt(request fetch.RequestID) *fetch.AuthChallengeResponse {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.user == "" || b.prompted[request] {
		return &fetch.AuthChallengeResponse{Response: fetch.AuthChallengeResponseResponseCancelAuth}
	}
	b.prompted[request] = true
	return &fetch.AuthChallengeResponse{
		Response: fetch.AuthChallengeResponseResponseProvideCredentials, Username: b.user, Password: b.password,
	}
}

// sent notes a command of the listener that failed.
func (b *browser) sent(_ cdp.Empty, err error) {
	// A request whose page was left is gone, and so is the browser at the test's end.
	if err != nil && b.ctx.Err() == nil && !strings.Contains(err.Error(), "Invalid InterceptionId") {
		b.keep(func() { b.unexpected = append(b.unexpected, err) })
	}
}

func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, c, params)
		return err
	})
}

func (b *browser) complain(text string) { b.keep(func() { b.complaints = append(b.complaints, text) }) }

func (b *browser) keep(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}
