package policy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a program in this process that does as its policy's text says.
type fake struct {
	net.Conn
	ended chan struct{}
}

// End implements program.
func (f fake) End() error {
	_ = f.Close()
	<-f.ended
	return nil
}

// Gone implements program.
func (f fake) Gone() bool {
	select {
	case <-f.ended:
		return true
	default:
		return false
	}
}

// fakes starts such programs.
type fakes struct {
	started int
	last    fake
	fails   error
}

func (s *fakes) start(context.Context) (program, error) {
	if s.fails != nil {
		return nil, s.fails
	}
	s.started++
	ours, its := net.Pipe()
	f := fake{Conn: ours, ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		defer func() { _ = its.Close() }()
		_ = serve(its) // the gate sees that it is gone
	}()
	s.last = f
	return f, nil
}

var errDead = errors.New("dead")

// serve answers: a policy of "bad" is refused, one of "dies" ends the program. It denies
// "No", keeps the input of "Keep", and fails in other ways by the request's name.
func serve(c net.Conn) error {
	var state json.RawMessage
	for {
		kind, body, err := ReadMessage(c)
		if err != nil {
			return err
		}
		a := Answer{Done: true}
		switch kind {
		case KindPolicy:
			a = Answer{Done: !strings.HasPrefix(string(body), "bad"), Reason: "line 1", Lenient: string(body) == "lenient"}
			if string(body) == "dies" {
				return errDead
			}
		case KindState:
			state = body
		case KindQuestion:
			request, input, err := SplitQuestion(body)
			if err != nil {
				return err
			}
			switch request {
			case "No", "SetPolicyRequest":
				a = Answer{Done: string(input) == `"yes"`, Reason: "because of " + string(input) + "\n\x1b[31m"}
			case "Keep":
				a.State, state = input, input
			case "Kept":
				a = Answer{Done: string(state) == string(input), Reason: string(state)}
			case "Lies":
				a = Answer{State: input}
			case "Dies":
				return errDead
			case "Stuck":
				_, _ = io.Copy(io.Discard, c)
				return nil
			case "Garbage":
				_, err := c.Write([]byte{byte(KindAnswer), 0, 0, 0, 2, '{', 'x'})
				return err
			}
		}
		if err := WriteAnswer(c, a); err != nil {
			return err
		}
	}
}

func gate(t *testing.T) (*Gate, *fakes) {
	t.Helper()
	s := &fakes{}
	g := New(Options{Program: func() (string, error) { return "/x", nil }, Logger: slog.New(slog.DiscardHandler)})
	g.start = s.start
	t.Cleanup(g.Close)
	return g, s
}

// asks asks about a request, which then succeeds.
func asks(ctx context.Context, g *Gate, request string, input []byte) error {
	end, err := g.Ask(ctx, request, input)
	end(false)
	return err
}

func TestGate(t *testing.T) {
	ctx := t.Context()
	g, s := gate(t)
	if err := asks(ctx, g, "No", nil); err != nil || s.started > 0 || g.InForce() {
		t.Errorf("without a policy: %v", err)
	}
	if err := g.Replace(ctx, "bad", nil); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "line 1") || g.InForce() {
		t.Errorf("a malformed policy: %v", err)
	}
	if err := g.Replace(ctx, "good", []byte(`"no"`)); err != nil || !g.InForce() {
		t.Fatalf("the first policy: %v", err)
	}
	if err := asks(ctx, g, "Yes", nil); err != nil {
		t.Errorf("what it allows: %v", err)
	}
	if err := asks(ctx, g, "No", []byte("x")); !errdefs.IsPermissionDenied(err) || err.Error() != "No is blocked by policy: because of x [31m" {
		t.Errorf("what it denies: %v", err)
	}
	if err := g.Replace(ctx, "good", []byte(`"no"`)); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a policy that it denies: %v", err)
	}
	if err := g.Replace(ctx, "bad", []byte(`"yes"`)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a malformed second policy: %v", err)
	}
	if err := asks(ctx, g, "No", nil); !errdefs.IsPermissionDenied(err) {
		t.Errorf("after a malformed second policy: %v", err)
	}
	if err := asks(ctx, g, "Yes", make([]byte, MaxMessage)); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a request that is too long: %v", err)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	g.turn <- struct{}{}
	if err := asks(over, g, "Yes", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
	<-g.turn
	g.Close()
	if err := asks(ctx, g, "Yes", nil); !errdefs.IsPermissionDenied(err) {
		t.Errorf("at the end: %v", err)
	}
	if err := g.Load(ctx, "good"); err == nil {
		t.Error("at the end a policy is set")
	}
}

// TestADeadProgramAllowsNothing: after any failure of the program, the request is denied, and the
// next one finds the same policy with its state.
func TestADeadProgramAllowsNothing(t *testing.T) {
	ctx := t.Context()
	for _, request := range []string{"Dies", "Garbage", "Lies", "Stuck"} {
		t.Run(request, func(t *testing.T) {
			g, s := gate(t)
			if err := g.Load(ctx, "good"); err != nil {
				t.Fatal(err)
			}
			if err := asks(ctx, g, "Keep", []byte(`"this"`)); err != nil {
				t.Fatal(err)
			}
			if request == "Stuck" {
				g.askTime = time.Millisecond
			}
			if err := asks(ctx, g, request, []byte(`"other"`)); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "could not be asked") {
				t.Errorf("the request: %v", err)
			}
			g.askTime = askTime
			if err := asks(ctx, g, "Kept", []byte(`"this"`)); err != nil || s.started != 2 {
				t.Errorf("the next one: %v, and %d were started", err, s.started)
			}
			s.fails = errors.New("there is none")
			_ = asks(ctx, g, "Dies", nil)
			if err := asks(ctx, g, "Kept", []byte(`"this"`)); !errdefs.IsPermissionDenied(err) {
				t.Errorf("when it cannot be started: %v", err)
			}
			s.fails = nil
			if err := asks(ctx, g, "Kept", []byte(`"this"`)); err != nil {
				t.Errorf("when it can be started again: %v", err)
			}
		})
	}
}

// TestAProgramThatDiedMeanwhile is started again before the next request.
func TestAProgramThatDiedMeanwhile(t *testing.T) {
	ctx := t.Context()
	g, s := gate(t)
	if err := g.Load(ctx, "good"); err != nil {
		t.Fatal(err)
	}
	if err := asks(ctx, g, "Keep", []byte(`"this"`)); err != nil {
		t.Fatal(err)
	}
	_ = s.last.End()
	if err := asks(ctx, g, "Kept", []byte(`"this"`)); err != nil || s.started != 2 {
		t.Errorf("%v, and %d were started", err, s.started)
	}
}

// TestAPolicyThatEndsTheProgram is refused, and the one before stays.
func TestAPolicyThatEndsTheProgram(t *testing.T) {
	ctx := t.Context()
	g, _ := gate(t)
	if err := g.Load(ctx, "dies"); err == nil || g.InForce() {
		t.Errorf("the first: %v", err)
	}
	if err := g.Load(ctx, "good"); err != nil {
		t.Fatal(err)
	}
	if err := g.Replace(ctx, "dies", []byte(`"yes"`)); err == nil {
		t.Error("it was set")
	}
	if err := asks(ctx, g, "No", nil); !errdefs.IsPermissionDenied(err) || strings.Contains(err.Error(), "could not be asked") {
		t.Errorf("the one before: %v", err)
	}
	if err := g.Replace(ctx, "lenient", []byte(`"yes"`)); err != nil {
		t.Errorf("a lenient one: %v", err)
	}
}

// TestWithoutTheProgram: an image that has none says so, and denies nothing by a policy.
func TestWithoutTheProgram(t *testing.T) {
	g := New(Options{Program: func() (string, error) { return "", errors.New("there is none") }, Logger: slog.New(slog.DiscardHandler)})
	defer g.Close()
	if err := g.Replace(t.Context(), "good", nil); !errdefs.IsNotImplemented(err) || g.Served() || g.InForce() {
		t.Errorf("%v", err)
	}
	if err := asks(t.Context(), g, "No", nil); err != nil {
		t.Error(err)
	}
}

// FuzzMessage: no bytes of the other side make a reader panic, take more than was sent, or
// read as something that was not written.
func FuzzMessage(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 1, 'x'})
	f.Add([]byte{3, 0, 0, 0, 4, 'A', 0, '{', '}'})
	f.Add([]byte{4, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte("\x04\x00\x00\x00\x26{\"done\":true,\"state\":{},\"reason\":\"x\"} "))
	f.Fuzz(func(t *testing.T, wire []byte) {
		kind, body, err := ReadMessage(strings.NewReader(string(wire)))
		if err != nil {
			return
		}
		var again strings.Builder
		if err := WriteMessage(&again, kind, body); err != nil || !strings.HasPrefix(string(wire), again.String()) {
			t.Errorf("%q was read as %d %q", wire, kind, body)
		}
		if request, input, err := SplitQuestion(body); err == nil && request+"\x00"+string(input) != string(body) {
			t.Errorf("%q is the question %q %q", body, request, input)
		}
		a, err := ReadAnswer(strings.NewReader(string(wire)))
		if err == nil && (kind != KindAnswer || len(a.Reason) > maxReason+len("…") || len(a.State) > 0 && !json.Valid(a.State)) {
			t.Errorf("%q was read as %+v", wire, a)
		}
	})
}

// TestAFailedRequestIsForgotten lets requests that change the state fail: the policy has the state of
// before, be it its first, and whether or not the program still runs. The control keeps the change of
// a request that succeeds.
func TestAFailedRequestIsForgotten(t *testing.T) {
	ctx := t.Context()
	g, s := gate(t)
	if err := g.Load(ctx, "good"); err != nil {
		t.Fatal(err)
	}
	kept := func(want string) {
		t.Helper()
		if err := asks(ctx, g, "Kept", []byte(want)); err != nil {
			t.Error(err)
		}
	}
	fail := func(input string) {
		t.Helper()
		end, err := g.Ask(ctx, "Keep", []byte(input))
		if err != nil {
			t.Fatal(err)
		}
		kept(input)
		end(true)
		end(true) // has no effect
	}
	fail(`"first"`)
	kept("")
	if err := asks(ctx, g, "Keep", []byte(`"control"`)); err != nil {
		t.Fatal(err)
	}
	kept(`"control"`)
	fail(`"second"`)
	kept(`"control"`)
	end, err := g.Ask(ctx, "Keep", []byte(`"third"`))
	if err != nil {
		t.Fatal(err)
	}
	_ = asks(ctx, g, "Dies", nil)
	end(true)
	kept(`"control"`)
	if s.started != 3 {
		t.Errorf("%d programs were started", s.started)
	}
}

// TestChangesOfTheStateFollowEachOther has a request that changes the state wait for another one,
// which fails, which succeeds, which takes too long, and which belongs to an earlier policy.
func TestChangesOfTheStateFollowEachOther(t *testing.T) {
	for name, tc := range map[string]struct {
		other  func(g *Gate, end func(bool))
		before string // the policy's state if the second request fails
	}{
		"fails":          {func(_ *Gate, end func(bool)) { end(true) }, `"start"`},
		"succeeds":       {func(_ *Gate, end func(bool)) { end(false) }, `"one"`},
		"takes too long": {func(*Gate, func(bool)) {}, `"one"`},
		"another policy": {func(g *Gate, _ func(bool)) { _ = g.Load(context.Background(), "good") }, ""}, //nolint:usetesting // it outlives no test
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			g, _ := gate(t)
			defer g.Close()
			if err := g.Load(ctx, "good"); err != nil {
				t.Fatal(err)
			}
			if err := asks(ctx, g, "Keep", []byte(`"start"`)); err != nil {
				t.Fatal(err)
			}
			endOne, err := g.Ask(ctx, "Keep", []byte(`"one"`))
			if err != nil {
				t.Fatal(err)
			}
			began, two := time.Now(), make(chan func(bool))
			go func() {
				end, err := g.Ask(ctx, "Keep", []byte(`"two"`))
				if err != nil {
					t.Error(err)
				}
				two <- end
			}()
			synctest.Wait()
			if err := asks(ctx, g, "Kept", []byte(`"one"`)); err != nil {
				t.Errorf("%s: while the second waits: %v", name, err)
			}
			tc.other(g, endOne)
			endTwo := <-two
			if took := time.Since(began); (took >= settleTime) != (name == "takes too long") {
				t.Errorf("%s: the second request waited for %s", name, took)
			}
			endOne(true) // it is final
			if err := asks(ctx, g, "Kept", []byte(`"two"`)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			endTwo(true)
			if err := asks(ctx, g, "Kept", []byte(tc.before)); err != nil {
				t.Errorf("%s: after the second failed: %v", name, err)
			}
		})
	}
}
