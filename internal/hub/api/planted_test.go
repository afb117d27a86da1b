package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/api"
	"github.com/longshore/longshore/internal/hub/hubtest"
	"github.com/longshore/longshore/internal/hub/store/etcd/etcdtest"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// buffer is a log that is written and read at once.
type buffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestAPlantedSecret is in no log, metric, event or answer, and in no byte of the hub's files: neither
// as it is, nor in a form that any of them might give it. The join token, an operator's token and the
// root's key are in none, but in their own answers.
func TestAPlantedSecret(t *testing.T) {
	t.Parallel()
	log, dir := &buffer{}, storetest.Dir(t)
	h := hubtest.New(t, func(o *hub.Options) {
		o.Store.Open = etcdtest.In(dir)
		o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	const secret = "planted-secret" // declare's
	c, ctx := api.NewClient(h.Socket), hubtest.Within(t)
	token := operator(t, h, hubv1.NewOperator{Name: "robot", Scope: "admin"}).Token
	robot := remote(t, h, token)
	planted := map[string]string{"the secret": secret, "the join token": strings.Split(h.CA.Authority.Token(), "-")[3], "an operator's token": token[len(token)-50:]}

	n := h.Join()
	o := hubtest.MustOpen(t, n, "")
	if _, err := robot.Apply(ctx, declare(t, nil), false); err != nil {
		t.Fatal(err)
	}
	if err := robot.Call(ctx, http.MethodPost, "/v1/secrets", hubv1.NewItem{Name: "mine", Data: []byte(secret)}, &hubv1.Item{}); err != nil {
		t.Fatal(err)
	}
	stream := hubtest.Assignments(t, n, o.First.GetSessionId())
	for task := (*swarmv1.Task)(nil); task == nil; { // the node has it
		for _, ch := range hubtest.Receive(t, stream).GetChanges() {
			if got := ch.GetAssignment().GetTask(); got != nil {
				task = got
			}
		}
	}
	// A refusal comes without the refused content.
	bad := declare(t, func(s *swarmv1.ServiceSpec) { s.Mode = nil })
	if _, err := c.Apply(ctx, bad, false); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("refused: %v", err)
	}
	for _, body := range []string{`{"name": "x", "data": "` + secret + `"}`, `{"name": "mine", "data": "` + base64.StdEncoding.EncodeToString([]byte(secret)) + `"}`} {
		if code, answer := ask(t, h, http.MethodPost, "/v1/secrets", []byte(body)); code < 400 || strings.Contains(answer, secret) {
			t.Errorf("refused: %d %s", code, answer)
		}
	}
	refuses(t, "a changed token", remote(t, h, token+"x"), "belongs to no operator")
	if err := c.Call(ctx, http.MethodDelete, "/v1/operators/robot", nil, &struct{}{}); err != nil {
		t.Error(err)
	}

	answers := ""
	services, tasks := h.Inventory.Services(), h.Inventory.Tasks()
	for _, r := range described(t) {
		if r.method != http.MethodGet || r.path == "/v1/token" {
			continue
		}
		path := r.path
		switch {
		case strings.HasPrefix(path, "/v1/nodes/"):
			path = "/v1/nodes/" + n.NodeID
		case strings.HasPrefix(path, "/v1/secrets/"):
			path = "/v1/secrets/mine"
		case strings.HasPrefix(path, "/v1/services/"):
			for id := range services {
				path = "/v1/services/" + id
			}
		case strings.HasPrefix(path, "/v1/tasks/"):
			for id := range tasks {
				path = "/v1/tasks/" + id
			}
		}
		code, answer := ask(t, h, http.MethodGet, path, nil)
		if code != http.StatusOK && r.path != "/v1/logs" && r.path != "/v1/configs/{id}" {
			t.Errorf("%s: %d %s", path, code, answer)
		}
		answers += answer
	}
	for _, want := range []string{"longshore_hub_nodes{state=\"ready\"} 1", "longshore_hub_sessions 1", "longshore_hub_store_transaction_duration_seconds_count", "longshore_hub_plan_duration_seconds_count", "applied the stack shop", "token robot", "removed the operator robot", "created the secret mine"} {
		if !strings.Contains(answers, want) {
			t.Errorf("the answers do not have %q", want)
		}
	}
	h.Restart() // it reads all again
	for what, text := range planted {
		for _, form := range []string{text, base64.StdEncoding.EncodeToString([]byte(text))[:len(text)], hex.EncodeToString([]byte(text))} {
			if paths := etcdtest.Has(t, dir, form); len(paths) > 0 {
				t.Errorf("%s is in %s, as %s", what, paths, form)
			}
			if strings.Contains(log.String(), form) {
				t.Errorf("%s is in the log, as %s", what, form)
			}
			if strings.Contains(answers, form) {
				t.Errorf("%s is in an answer, as %s", what, form)
			}
		}
	}
	if paths := etcdtest.Has(t, dir, "PRIVATE KEY"); len(paths) > 0 {
		t.Errorf("a key is in %s", paths)
	}
	if len(etcdtest.Has(t, dir, "applied the stack shop")) == 0 { // the search works
		t.Error("the files do not have an event")
	}
}
