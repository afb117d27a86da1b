package kata

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
)

// trial is one case of the code table: a call, its case, and its steps.
type trial struct {
	call, when string
	prepare    func(*testing.T, *rig) // nil: a sandbox with the container c1, which copies its input
	do         func(*testing.T, *rig) error
}

// client is a rig's client that remembers the last call it made.
type client struct {
	katav1.AgentServiceService
	katav1.HealthService
	last string
}

func (r *rig) remembering(t *testing.T) *client {
	t.Helper()
	c := &client{}
	conn := r.dial(t, ttrpc.WithUnaryClientInterceptor(func(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
		c.last = req.Method
		return invoke(ctx, req, resp)
	}))
	c.AgentServiceService, c.HealthService = katav1.NewAgentServiceClient(conn), katav1.NewHealthClient(conn)
	return c
}

// codeTable reads testdata/codes.txt: the code of each call and when.
func codeTable(t *testing.T) map[string]codes.Code {
	t.Helper()
	b, err := os.ReadFile("testdata/codes.txt")
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]codes.Code{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		var code codes.Code
		if len(f) < 3 || code.UnmarshalJSON([]byte(`"`+f[1]+`"`)) != nil {
			t.Fatalf("no line of the code table: %q", line)
		}
		key := f[0] + ": " + strings.Join(f[2:], " ")
		if _, twice := table[key]; twice {
			t.Errorf("%s stands twice in the code table", key)
		}
		table[key] = code
	}
	return table
}

// TestCodes: each call, as a client of ttrpc makes it, has each of its codes. There is a
// case for each line of the table, and a line for each call of the protocol.
func TestCodes(t *testing.T) {
	table := codeTable(t)
	lines := map[string]bool{}
	for key := range table {
		call, _, _ := strings.Cut(key, ":")
		lines[call] = true
	}
	for _, m := range calls() {
		if !lines[string(m.Name())] {
			t.Errorf("the code table has no line for %s", m.Name())
		}
		delete(lines, string(m.Name()))
	}
	for call := range lines {
		t.Errorf("the code table has a call %s, which the protocol does not", call)
	}
	for _, tt := range trials() {
		key := tt.call + ": " + tt.when
		want, ok := table[key]
		if !ok {
			t.Errorf("%s: the code table has no such line, or two cases for it", key)
			continue
		}
		delete(table, key)
		t.Run(key, func(t *testing.T) {
			r := newRigThatAllows(t, Requests{}, policies()[key])
			if tt.prepare == nil {
				running(t, r)
			} else {
				tt.prepare(t, r)
			}
			c := r.remembering(t)
			r.AgentServiceService, r.health = c.AgentServiceService, c.HealthService
			r.machine.heard()
			if err := tt.do(t, r); status.Code(err) != want {
				t.Errorf("%v, want %v", err, want)
			}
			if c.last != tt.call {
				t.Errorf("the last call was %s", c.last)
			}
			r.machine.mends()
		})
	}
	for key := range table {
		t.Errorf("%s has no case", key)
	}
}

// policies are those under which cases are tried; the others have none.
func policies() map[string]Policy {
	return map[string]Policy{
		"SetPolicy: a policy": &words{}, "SetPolicy: a policy that is none": &words{}, "SetPolicy: a policy that allows no other": &words{deny: setPolicyRequest, set: true},
	}
}

// calls are all calls of the protocol.
func calls() (all []protoreflect.MethodDescriptor) {
	for _, f := range []protoreflect.FileDescriptor{katav1.File_kata_v1_agent_proto, katav1.File_kata_v1_health_proto} {
		for i := range f.Services().Len() {
			list := f.Services().Get(i).Methods()
			for j := range list.Len() {
				all = append(all, list.Get(j))
			}
		}
	}
	return all
}

// made makes a call by its name.
func made(t *testing.T, conn *ttrpc.Client, m protoreflect.MethodDescriptor, req proto.Message) (proto.Message, error) {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		t.Fatal(err)
	}
	answer := kind.New().Interface()
	return answer, conn.Call(t.Context(), string(m.Parent().FullName()), string(m.Name()), req, answer)
}

// TestCallsThatAreNoCalls: the codes of every call for a malformed message, and for a request that
// the options or a policy deny. The agent serves on.
func TestCallsThatAreNoCalls(t *testing.T) {
	var deny []string
	for _, m := range calls() {
		if m.Parent().Name() == "AgentService" {
			deny = append(deny, string(m.Input().Name()))
		}
	}
	open, closed, ruled := newRig(t), newRigThatAllows(t, Requests{Deny: deny}, nil), newRigThatAllows(t, Requests{}, &words{deny: strings.Join(deny, " "), set: true})
	conn, barred := open.dial(t), map[string]*ttrpc.Client{"the options": closed.dial(t), "a policy": ruled.dial(t)}
	for _, m := range calls() {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
		if err != nil {
			t.Fatal(err)
		}
		garbage := kind.New()
		garbage.SetUnknown([]byte{0x0a, 0xff}) // a field that is longer than the message
		if got := code(made(t, conn, m, garbage.Interface())); got != codes.Internal {
			t.Errorf("%s of what is no message: %v", m.Name(), got)
		}
		for by, denied := range barred {
			_, err := made(t, denied, m, kind.New().Interface())
			switch {
			case m.Parent().Name() == "Health":
				if err != nil {
					t.Errorf("%s, which %s cannot deny: %v", m.Name(), by, err)
				}
			case m.Name() == "ReadStdout", m.Name() == "ReadStderr": // no data: TestBlockedRequests
				if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "invalid container id") {
					t.Errorf("%s of no container, which %s denies: %v", m.Name(), by, err)
				}
			case status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), string(m.Input().Name())):
				t.Errorf("%s, which %s denies: %v", m.Name(), by, err)
			}
		}
	}
	if err := conn.Call(t.Context(), "grpc.AgentService", "NoSuchCall", &katav1.CheckRequest{}, &katav1.HealthCheckResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a call that there is not: %v", err)
	}
	if _, err := open.GetGuestDetails(t.Context(), &katav1.GuestDetailsRequest{}); err != nil {
		t.Errorf("after all that: %v", err)
	}
	if got := closed.machine.heard() + ruled.machine.heard(); got != "" {
		t.Errorf("denied calls reached the machine: %s", got)
	}
}

// Ways to prepare a rig.
func bare(*testing.T, *rig) {}

func boxed(t *testing.T, r *rig) {
	t.Helper()
	r.sandbox(t)
}

func running(t *testing.T, r *rig) {
	t.Helper()
	r.sandbox(t)
	r.run(t, "c1", "cat")
}

// ended is running, and c1 has ended, with nobody having asked.
func ended(t *testing.T, r *rig) {
	t.Helper()
	running(t, r)
	if _, err := r.SignalProcess(t.Context(), &katav1.SignalProcessRequest{ContainerId: "c1", Signal: 9}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: "c1"}); err != nil {
		t.Fatal(err)
	}
}

func paused(t *testing.T, r *rig) {
	t.Helper()
	running(t, r)
	if _, err := r.PauseContainer(t.Context(), &katav1.PauseContainerRequest{ContainerId: "c1"}); err != nil {
		t.Fatal(err)
	}
}

// TestAPauseIsFollowedByReclaim: the cgroup of a container is reclaimed after its pause, and not after a refused one.
func TestAPauseIsFollowedByReclaim(t *testing.T) {
	r := newRig(t)
	running(t, r)
	r.machine.heard()
	for range 2 {
		_, _ = r.PauseContainer(t.Context(), &katav1.PauseContainerRequest{ContainerId: "c1"})
	}
	list, err := r.node.As(core.OwnerKata).Containers(t.Context(), core.Filter{})
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	if got, want := r.machine.heard(), "paused "+list[0].Cgroup.Path; got != want {
		t.Errorf("after two pauses: %s, want %s", got, want)
	}
}

// mends ends the machine's failures.
func (m *fakeMachine) mends() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails = nil
}

// broken is a sandbox with a machine that fails from now on, with err.
func broken(err error) func(*testing.T, *rig) {
	return func(t *testing.T, r *rig) {
		t.Helper()
		r.sandbox(t)
		r.machine.mu.Lock()
		defer r.machine.mu.Unlock()
		r.machine.fails = err
	}
}

var errBroken = errors.New("broken")

type agent = katav1.AgentServiceService

// says makes a call, and looks for one text in its answer, and for another in the machine's calls.
func says[Q, A proto.Message](call func(agent, context.Context, Q) (A, error), req Q, texts ...string) func(*testing.T, *rig) error {
	return func(t *testing.T, r *rig) error {
		t.Helper()
		answer, err := call(r, t.Context(), req)
		told := r.machine.heard()
		for i, text := range texts {
			if in := []string{fmt.Sprint(answer), told}[i]; err == nil && !strings.Contains(in, text) {
				t.Errorf("there is no %q in %q", text, in)
			}
		}
		return err
	}
}

// of returns the two cases of a call about the machine: it obeys, or fails.
func of[Q, A proto.Message](name, when string, call func(agent, context.Context, Q) (A, error), req Q, texts ...string) []trial {
	return []trial{{name, when, boxed, says(call, req, texts...)}, {name, "a machine that fails", broken(errBroken), says(call, req)}}
}

// errNotThere is the machine's error for a missing object.
var errNotThere = fmt.Errorf("it is not there: %w", errdefs.ErrNotFound)
