package mesos

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/roottest"
)

const (
	nestedID     = `{"value":"n","parent":{"value":"a"}}`
	launchNested = `{"type":"LAUNCH_NESTED_CONTAINER","launch_nested_container":{"container_id":` + nestedID + `,"command":{"value":"serve"}}}`
	removeNested = `{"type":"REMOVE_NESTED_CONTAINER","remove_nested_container":{"container_id":` + nestedID + `}}`
	killNested   = `{"type":"KILL_NESTED_CONTAINER","kill_nested_container":{"container_id":` + nestedID + `}}`
	waitNested   = `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"container_id":` + nestedID + `}}`
)

// life is a crash test of a call that succeeds with one of the codes. Its client removes the
// container a with all in it.
func (n *testNode) life(crash *enginetest.Crash, body string, codes ...int) enginetest.Life {
	call := func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://mesos/api/v1", strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := n.client.Do(r)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		for _, c := range codes {
			if resp.StatusCode == c {
				return err
			}
		}
		return fmt.Errorf("%d %q, %w", resp.StatusCode, text, err)
	}
	return enginetest.Life{
		Node: n.Node, Crash: crash, Call: call,
		Again: func() error { return call(n.t.Context()) },
		Restart: func() {
			n.shutdown()
			n.Start()
			n.serve()
		},
		Clear: func() error {
			if code, _ := n.post(killA); code == http.StatusOK {
				n.post(waitA)
			}
			if code, text := n.post(removeA); code != http.StatusOK && !strings.Contains(text, "Unknown root container a") {
				return fmt.Errorf("%d %q", code, text)
			}
			return nil
		},
	}
}

// mortal returns a node and the Crash of its agent.
func mortal(t *testing.T) (*testNode, *enginetest.Crash) {
	t.Helper()
	n := newTestNode(t)
	n.shutdown()
	n.Stop()
	c := n.Crashes()
	n.Start()
	n.serve()
	return n, c
}

// acked waits until an end is acknowledged, after its report: it is no stage of the next call.
func acked(t *testing.T, c *enginetest.Crash) {
	t.Helper()
	roottest.Eventually(t, "the end is acknowledged", func() bool { return slices.Contains(c.Passed(), "exit.acked") })
}

// TestTheAgentDiesInALaunch kills it after every stage of a launch. The same launch
// once more is answered as one that begins, or as one that runs.
func TestTheAgentDiesInALaunch(t *testing.T) {
	needsRoot(t)
	t.Run("standalone", func(t *testing.T) {
		enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
			n, c := mortal(t)
			return wantRunning(n, n.life(c, launchA, http.StatusOK, http.StatusAccepted), "a")
		})
	})
	t.Run("nested", func(t *testing.T) {
		enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
			n, c := mortal(t)
			n.is(launchA, 200, "")
			return wantRunning(n, n.life(c, launchNested, http.StatusOK, http.StatusAccepted), "a.n")
		})
	})
}

// wantRunning has the repeated call want a container that runs.
func wantRunning(n *testNode, l enginetest.Life, key core.Key) enginetest.Life {
	again := l.Again
	l.Again = func() error {
		err := again()
		if s := n.container(key).State; err == nil && s != core.ContainerRunning {
			err = fmt.Errorf("%s is %s", key, s)
		}
		return err
	}
	return l
}

// TestTheAgentDiesInARemoval: the same removal once more succeeds or finds nothing, and the name is
// free.
func TestTheAgentDiesInARemoval(t *testing.T) {
	needsRoot(t)
	t.Run("standalone", func(t *testing.T) {
		enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
			n, c := mortal(t)
			n.is(launchA, 200, "")
			n.is(killA, 200, "")
			n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
			acked(t, c)
			l := n.life(c, removeA, http.StatusOK)
			l.Again = func() error {
				if err := l.Call(t.Context()); err != nil && !strings.Contains(err.Error(), "Unknown root container a") {
					return err
				}
				n.is(launchA, 200, "")
				return nil
			}
			return l
		})
	})
	t.Run("nested", func(t *testing.T) {
		enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
			n, c := mortal(t)
			n.is(launchA, 200, "")
			n.is(launchNested, 200, "")
			n.is(killNested, 200, "")
			n.is(waitNested, 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":9}}`)
			acked(t, c)
			l := n.life(c, removeNested, http.StatusOK)
			l.Again = func() error {
				if err := l.Call(t.Context()); err != nil {
					return err
				}
				n.is(launchNested, 200, "")
				return nil
			}
			return l
		})
	})
}
