package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/grant/board/broker"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/program"
)

// TestRenew: the next process has all handles, servers, containers and rules. Clients connect all the time, and each reaches a server.
func TestRenew(t *testing.T) {
	n := start(t, board.Rule{Client: board.Realm{Owner: "ops"}, Server: board.Realm{Owner: "cri"}})
	cri := board.Realm{Owner: "cri"}
	child := exec.CommandContext(t.Context(), "cat")
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	// Four servers, which get the connections in turn.
	for i := range 4 {
		say(n.serve(n.handle("server", cri, board.Serve, map[string]string{"app": "db"}), nil), fmt.Sprint(i))
	}
	other := n.serve(n.handle("other", cri, board.Serve, map[string]string{"app": "web"}), nil)
	say(other, "web")
	if err := n.Bind(t.Context(), "other", child.Process.Pid); err != nil {
		t.Fatal(err)
	}
	client := n.handle("client", cri, board.Connect, nil)
	reached := func(h *program.Handle, labels map[string]string) string {
		c, err := h.Connect(t.Context(), labels)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = c.Close() }()
		text, err := io.ReadAll(c)
		return fmt.Sprint(string(text), err)
	}
	turn := 0
	next := func(h *program.Handle) {
		t.Helper()
		if got, want := reached(h, map[string]string{"app": "db"}), fmt.Sprint(turn%4, "<nil>"); got != want {
			t.Errorf("connection %d reached %s, want %s", turn, got, want)
		}
		turn++
	}
	ops := n.handle("operator", board.Realm{Owner: "ops"}, board.Connect, nil)
	next(client)
	for range 3 {
		before := n.status()
		stop := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					next(client)
				}
			}
		})
		if err := n.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(stop)
		all.Wait()
		next(ops) // from another realm, by the rules
		after := n.status()
		if before.PID == after.PID || before.Handles != after.Handles || before.Servers != after.Servers || before.Confinement != after.Confinement || strings.Join(before.Unbound, " ") != strings.Join(after.Unbound, " ") || after.Connections < before.Connections {
			t.Errorf("%+v, and before %+v", after, before)
		}
		roottest.Eventually(t, "the process before has ended", func() bool { return errors.Is(unix.Kill(before.PID, 0), unix.ESRCH) })
		narrow, err := client.Narrow(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		next(narrow)
		if err := narrow.Close(); err != nil {
			t.Error(err)
		}
	}
	// A container ends with its process still.
	if got := reached(client, map[string]string{"app": "web"}); got != "web<nil>" {
		t.Error(got)
	}
	_ = stdin.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	roottest.Eventually(t, "its server is gone", func() bool {
		_, err := client.Connect(t.Context(), map[string]string{"app": "web"})
		return code(err) == program.NoServer
	})
}

// TestRenewByABadProgram: a program that does not start, or that speaks another language, leaves the process before as it was, and the
// reason is in the error.
func TestRenewByABadProgram(t *testing.T) {
	n := start(t)
	if err := n.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "no process answers") {
		t.Errorf("without a process: %v", err)
	}
	realm := board.Realm{Owner: "cri"}
	say(n.serve(n.handle("server", realm, board.Serve, nil), nil), "there")
	client := n.handle("client", realm, board.Connect, nil)
	before := n.status()
	for script, says := range map[string]string{
		"echo no such luck >&2; exit 3": "no such luck",
		"echo noise >&3; exec cat":      "it says",
		"echo '{}' >&3; exec cat":       "reads form 0",
		"echo '{\"reads\":2}' >&3":      "reads form 2",
		"echo '{\"reads\":1}' >&3":      "has not taken over",
	} {
		other := broker.New(broker.Options{Dir: n.dir, Command: []string{"/bin/sh", "-c", script}, Logger: slog.New(slog.DiscardHandler)})
		if err := other.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", script, err)
		}
		other.Close()
		c, err := client.Connect(context.Background(), nil)
		if err != nil {
			t.Fatalf("after %s: %v", script, err)
		}
		if text, err := io.ReadAll(c); string(text) != "there" {
			t.Errorf("after %s: %q, %v", script, text, err)
		}
		_ = c.Close()
		if after := n.status(); after.PID != before.PID || after.Handles != before.Handles || after.Servers != before.Servers {
			t.Errorf("after %s: %+v, and before %+v", script, after, before)
		}
	}
	if left, err := filepath.Glob(filepath.Join(n.dir, "*next*")); len(left) > 0 || err != nil {
		t.Errorf("left: %q, %v", left, err)
	}
}
