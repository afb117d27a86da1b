package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/api"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/hubtest"
	"github.com/longshore/longshore/internal/hub/inventory"
)

// declare is a declaration of one service with a secret, which change may change.
func declare(t *testing.T, change func(*swarmv1.ServiceSpec)) fleet.Declaration {
	t.Helper()
	spec := &swarmv1.ServiceSpec{
		Annotations: &swarmv1.Annotations{Name: "web"}, Mode: &swarmv1.ServiceSpec_Global{Global: &swarmv1.GlobalService{}},
		Task: &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: &swarmv1.ContainerSpec{Image: "busybox", Secrets: []*swarmv1.SecretReference{{SecretName: "key"}}}}},
	}
	if change != nil {
		change(spec)
	}
	data, err := protojson.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return fleet.Declaration{Name: "shop", Services: []json.RawMessage{data}, Secrets: map[string][]byte{"key": []byte("planted-secret")}}
}

// ask asks without the client, and returns the answer as it is.
func ask(t *testing.T, h *hubtest.Hub, method, path string, body []byte) (int, string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return new(net.Dialer).DialContext(t.Context(), "unix", h.Socket)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://hub"+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) { // the hub reads no more, and its answer came too late
		return http.StatusRequestEntityTooLarge, "too large"
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

func changes(diff []hubv1.Difference) string {
	var words []string
	for _, d := range diff {
		words = append(words, d.Change+" "+d.Kind+" "+d.Name)
	}
	return strings.Join(words, ", ")
}

// TestOperators: an operator's calls, from the token to the task of a node; no answer has a secret.
func TestOperators(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	c := api.NewClient(h.Socket)
	ctx := hubtest.Within(t)
	n := h.Join()
	session := hubtest.MustOpen(t, n, "").First.GetSessionId()
	apply := func(d fleet.Declaration, dry bool, want string) {
		t.Helper()
		diff, err := c.Apply(ctx, d, dry)
		if got := changes(diff); err != nil || got != want {
			t.Errorf("applied: %s, %v, want %s", got, err, want)
		}
	}
	apply(declare(t, nil), true, "create secret key, create service web")
	if len(h.Inventory.Services())+len(h.Inventory.Secrets()) > 0 {
		t.Error("a diff has stored something")
	}
	apply(declare(t, nil), false, "create secret key, create service web")
	apply(declare(t, nil), false, "none secret key, none service web")
	stream := hubtest.Assignments(t, n, session)
	var secret *swarmv1.Secret
	for secret == nil {
		for _, ch := range hubtest.Receive(t, stream).GetChanges() {
			if s := ch.GetAssignment().GetSecret(); s != nil {
				secret = s
			}
		}
	}
	if string(secret.GetSpec().GetData()) != "planted-secret" || secret.GetSpec().GetAnnotations().GetName() != "shop_key" {
		t.Errorf("the node's secret: %v", secret)
	}
	changed := declare(t, nil)
	changed.Secrets["key"] = []byte("another planted-secret")
	apply(changed, false, "update secret key, update service web")
	label := "edge"
	if err := c.Call(ctx, http.MethodPatch, "/v1/nodes/"+n.NodeID, hubv1.NodeChange{Labels: map[string]*string{"site": &label}}, &struct{}{}); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/v1/nodes", "/v1/services", "/v1/tasks"} {
		code, answer := ask(t, h, http.MethodGet, path, nil)
		if code != http.StatusOK || !strings.HasPrefix(answer, "[{") || strings.Contains(answer, "planted") {
			t.Errorf("%s: %d %s", path, code, answer)
		}
	}
	if _, answer := ask(t, h, http.MethodGet, "/v1/nodes", nil); !strings.Contains(answer, `"labels":{"site":"edge"}`) {
		t.Errorf("nodes: %s", answer)
	}
	apply(fleet.Declaration{Name: "shop"}, false, "remove service web")
	hubtest.Until(t, h, "the secrets are gone", func() bool { return len(h.Inventory.Services()) == 0 })
	if err := c.Call(ctx, http.MethodDelete, "/v1/nodes/"+n.NodeID, nil, &struct{}{}); err != nil {
		t.Error(err)
	}
	hubtest.Until(t, h, "tasks and secrets are gone", func() bool { return len(h.Inventory.Tasks())+len(h.Inventory.Secrets()) == 0 })
}

// TestWhatIsRefused: each with its code and a sentence, and nothing of it is stored.
func TestWhatIsRefused(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	bomb, err := json.Marshal(map[string]any{"labels": func() map[string]string {
		all := map[string]string{}
		for i := range 1000 {
			all[strings.Repeat("l", i+1)] = "v"
		}
		return all
	}()})
	if err != nil {
		t.Fatal(err)
	}
	n := h.Join()
	for _, c := range []struct {
		method, path string
		body         []byte
		code         int
		text         string
	}{
		{http.MethodGet, "/v1/logs?of=nothing", nil, 404, "there is no service and no task"},
		{http.MethodGet, "/v1/unknown", nil, 404, ""},
		{http.MethodDelete, "/v1/nodes/unknown", nil, 404, "there is no node unknown"},
		{http.MethodPatch, "/v1/nodes/unknown", []byte(`{}`), 404, "there is no node unknown"},
		{http.MethodPatch, "/v1/nodes/" + n.NodeID, []byte(`{"availability": "asleep"}`), 400, "none of active, pause and drain"},
		{http.MethodPatch, "/v1/nodes/" + n.NodeID, []byte(`{"role": "manager"}`), 400, "unknown field"},
		{http.MethodPatch, "/v1/nodes/" + n.NodeID, bomb, 400, "label"},
		{http.MethodPut, "/v1/stacks", []byte("{"), 400, "cannot be read"},
		{http.MethodPut, "/v1/stacks", []byte(`{"name": "a"} {}`), 400, "more than one value"},
		{http.MethodPut, "/v1/stacks", []byte(`{"name": "A/b"}`), 400, "the name of the stack"},
		{http.MethodPut, "/v1/stacks", []byte(`{"name": "a", "services": [{"unknown": 1}]}`), 400, "cannot be read"},
		{http.MethodPut, "/v1/stacks", []byte(`{"name": "` + strings.Repeat("a", 10<<20) + `"}`), 413, "too large"},
		{http.MethodPut, "/v1/stacks", []byte(strings.Repeat(`[`, 1<<16)), 400, "cannot be read"},
	} {
		if code, answer := ask(t, h, c.method, c.path, c.body); code != c.code || !strings.Contains(answer, c.text) {
			t.Errorf("%s %s %.60s: %d %.200s, want %d with %q", c.method, c.path, c.body, code, answer, c.code, c.text)
		}
	}
	for want, change := range map[string]func(*swarmv1.ServiceSpec){
		"no container":                  func(s *swarmv1.ServiceSpec) { s.Task = nil },
		"no image":                      func(s *swarmv1.ServiceSpec) { s.GetTask().GetContainer().Image = "" },
		"the name of the service":       func(s *swarmv1.ServiceSpec) { s.Annotations.Name = "../x" },
		"networks":                      func(s *swarmv1.ServiceSpec) { s.Networks = []*swarmv1.NetworkAttachmentConfig{{Target: "mesh"}} },
		"neither global nor replicated": func(s *swarmv1.ServiceSpec) { s.Mode = nil },
		"at most 10000": func(s *swarmv1.ServiceSpec) {
			s.Mode = &swarmv1.ServiceSpec_Replicated{Replicated: &swarmv1.ReplicatedService{Replicas: 1 << 40}}
		},
		"only the mode host": func(s *swarmv1.ServiceSpec) {
			s.Endpoint = &swarmv1.EndpointSpec{Ports: []*swarmv1.PortConfig{{TargetPort: 80}}}
		},
		"published twice": func(s *swarmv1.ServiceSpec) {
			p := &swarmv1.PortConfig{TargetPort: 80, PublishedPort: 80, PublishMode: swarmv1.PortConfig_HOST}
			s.Endpoint = &swarmv1.EndpointSpec{Ports: []*swarmv1.PortConfig{p, p}}
		},
		"not a clean absolute path": func(s *swarmv1.ServiceSpec) {
			s.GetTask().GetContainer().Mounts = []*swarmv1.Mount{{Source: "/a", Target: "/a/../b"}}
		},
		"mounts of the type cluster": func(s *swarmv1.ServiceSpec) {
			s.GetTask().GetContainer().Mounts = []*swarmv1.Mount{{Type: swarmv1.Mount_CLUSTER, Target: "/b"}}
		},
		"constraint": func(s *swarmv1.ServiceSpec) {
			s.GetTask().Placement = &swarmv1.Placement{Constraints: []string{"moon==full"}}
		},
		"which is not declared": func(s *swarmv1.ServiceSpec) { s.GetTask().GetContainer().Secrets[0].SecretName = "other" },
	} {
		if _, err := api.NewClient(h.Socket).Apply(hubtest.Within(t), declare(t, change), false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if len(h.Inventory.Services())+len(h.Inventory.Secrets()) > 0 {
		t.Error("something of what was refused is stored")
	}
}

// TestOutput: a client gets its task's output, and not another task's or node's.
func TestOutput(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	n := h.Join()
	hubtest.MustOpen(t, n, "")
	hubtest.Commit(t, h, hubtest.Task("mine", n.NodeID, swarmv1.TaskState_RUNNING), hubtest.Task("other", "another", swarmv1.TaskState_RUNNING))
	subscriptions, err := n.Logs.ListenSubscriptions(hubtest.Within(t), &swarmv1.ListenSubscriptionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []hubv1.Line
	done := make(chan error, 1)
	go func() {
		done <- api.NewClient(h.Socket).Logs(t.Context(), "mine", false, 5, func(l hubv1.Line) error {
			got = append(got, l)
			return nil
		})
	}()
	s := hubtest.Receive(t, subscriptions)
	if s.GetOptions().GetTail() != -6 || s.GetOptions().GetFollow() || strings.Join(s.GetSelector().GetTaskIds(), " ") != "mine" {
		t.Errorf("the subscription: %v", s)
	}
	publish := func(messages ...*swarmv1.PublishLogsMessage) error {
		stream, err := n.Logs.PublishLogs(hubtest.Within(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		_, err = stream.CloseAndRecv()
		return err
	}
	line := func(node, task, text string) []*swarmv1.LogMessage {
		return []*swarmv1.LogMessage{{Context: &swarmv1.LogContext{NodeId: node, TaskId: task}, Stream: swarmv1.LogStream_LOG_STREAM_STDERR, Data: []byte(text)}}
	}
	id := s.GetId()
	for want, err := range map[string]error{
		"missing subscription ID": publish(&swarmv1.PublishLogsMessage{}),
		"unknown subscription ID": publish(&swarmv1.PublishLogsMessage{SubscriptionId: "unknown"}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := publish(&swarmv1.PublishLogsMessage{SubscriptionId: id, Messages: line(n.NodeID, "mine", "text\n")}, &swarmv1.PublishLogsMessage{SubscriptionId: id, Close: true}); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil || len(got) != 1 || string(got[0].Data) != "text\n" || got[0].Task != "mine" || got[0].Stream != "stderr" {
		t.Errorf("got %+v, %v", got, err)
	}
	if m := hubtest.Receive(t, subscriptions); m.GetId() != id || !m.GetClose() {
		t.Errorf("the end of the subscription: %v", m)
	}

	// Output of others is refused.
	go func() {
		done <- api.NewClient(h.Socket).Logs(t.Context(), "mine", true, -1, func(hubv1.Line) error { return nil })
	}()
	id = hubtest.Receive(t, subscriptions).GetId()
	for want, m := range map[string]*swarmv1.PublishLogsMessage{
		"invalid NodeID": {SubscriptionId: id, Messages: line("another", "other", "forged")},
		"output of a task that was not asked for": {SubscriptionId: id, Messages: line(n.NodeID, "other", "forged")},
	} {
		if err := publish(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := publish(&swarmv1.PublishLogsMessage{SubscriptionId: id}, &swarmv1.PublishLogsMessage{SubscriptionId: "other"}); err == nil || !strings.Contains(err.Error(), "different subscription IDs") {
		t.Errorf("two subscriptions in one stream: %v", err)
	}
}

// TestApplyWhileAnUpdateGoesOn: that the state of a service's update is stored meanwhile is no reason
// to refuse a declaration; that another declaration was is.
func TestApplyWhileAnUpdateGoesOn(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	ctx := hubtest.Within(t)
	version := func(n int) fleet.Declaration {
		return declare(t, func(s *swarmv1.ServiceSpec) { s.GetTask().GetContainer().Env = []string{fmt.Sprintf("V=%d", n)} })
	}
	if _, err := fleet.Apply(ctx, h.Inventory, version(0), false); err != nil {
		t.Fatal(err)
	}
	var stored atomic.Int32
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for id, r := range h.Inventory.Services() {
				next := proto.CloneOf(r.M)
				next.UpdateStatus = &swarmv1.UpdateStatus{Message: fmt.Sprint(stored.Load())}
				if _, err := h.Inventory.Commit(ctx, inventory.Put(inventory.Services, id, next, r.Rev)); err == nil {
					stored.Add(1)
				}
			}
		}
	}()
	declarations := 0
	for declarations < 10 || stored.Load() < 3 {
		declarations++
		if _, err := fleet.Apply(ctx, h.Inventory, version(declarations), false); err != nil {
			t.Fatalf("declaration %d: %v", declarations, err)
		}
	}
	close(stop)
	<-done
	for _, r := range h.Inventory.Services() {
		if got := r.M.GetSpecVersion().GetIndex(); got != uint64(declarations)+1 {
			t.Errorf("the service is of version %d after %d declarations", got, declarations)
		}
	}
}
