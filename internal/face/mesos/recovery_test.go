package mesos

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhileItRecovers: an authorized client hears of the recovery, by any call in any form; another
// one hears only its refusal. Calls after the recovery are answered.
func TestWhileItRecovers(t *testing.T) {
	const text = "Agent has not finished recovery"
	n := newTestNode(t)
	n.is(launchA, 200, "")
	n.recovered = make(chan struct{})
	v := visitor{t: t, address: n.listen(func(c *Config) { c.Credentials = written(t, "ops s3cret") })}
	v.is("/api/v1", healthCall, 401, "401 Unauthorized.", `Basic realm="mesos-agent-readwrite"`)
	v.is("/state", "", 401, "401 Unauthorized.", `Basic realm="mesos-agent-readonly"`)
	v.authorization = opsBasic
	for _, path := range []string{"/api/v1", "/slave(1)/api/v1", "/state", "/slave(1)/state", "/containers", "/tasks"} {
		v.is(path, "", 503, text, "") // by GET, and without a form: before these are checked
	}
	for name := range n.server.handlers {
		n.is(`{"type":"`+name.String()+`"}`, 503, text)
	}
	n.is("", 503, text)
	v.is("/health", "", 200, "", "")
	v.is("/slave(1)/health/", "", 200, "", "")

	// Nothing is lost by it.
	close(n.recovered)
	v.is("/api/v1", healthCall, 200, healthAnswer, "")
	n.is(`{"type":"WAIT_CONTAINER","wait_container":{"container_id":{"value":"none"}}}`, 404, "Container none cannot be found")
	n.is(killA, 200, "")
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
}

// TestItEndsWhileItRecovers: the end of the face does not wait for it.
func TestItEndsWhileItRecovers(t *testing.T) {
	n := newTestNode(t)
	n.shutdown()
	n.recovered = make(chan struct{})
	n.serve()
	n.is(`{"type":"GET_HEALTH"}`, 503, "Agent has not finished recovery")
	n.shutdown()
}

// TestCallsWaitForTheFace: a call between the engine's recovery and the face's own is not refused.
func TestCallsWaitForTheFace(t *testing.T) {
	recovered, ready := make(chan struct{}), make(chan struct{})
	close(recovered)
	reached := make(chan struct{})
	h := recoveryGate{recovered: recovered, ready: ready}.wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(reached) }))
	call := func(ctx context.Context) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://mesos/api/v1", strings.NewReader(""))
		if err != nil {
			t.Error(err)
			return
		}
		h.ServeHTTP(nil, r) // nothing may be answered
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	call(gone) // a client that has left does not wait
	select {
	case <-reached:
		t.Fatal("a call came through")
	default:
	}
	go call(t.Context())
	close(ready)
	<-reached
}

// TestTheFileOfAnEarlierVersionGoes: of how sessions ended, which the engine keeps now.
func TestTheFileOfAnEarlierVersionGoes(t *testing.T) {
	n := newTestNode(t)
	n.shutdown()
	file := filepath.Join(n.work, "sessions")
	if err := os.WriteFile(file, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.serve()
	n.is(`{"type":"GET_HEALTH"}`, 200, healthAnswer)
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v", file, err)
	}
}
