package ship

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
)

// TestTroubles: options that no driver can have stop a follower; a missing file is a trouble until it is back.
func TestTroubles(t *testing.T) {
	dir, ca := t.TempDir(), tlsconftest.New(t)
	file := filepath.Join(dir, "ca.pem")
	sinks := []core.Sink{{Format: core.FormatCRI, Stdout: true, Stderr: true, Path: filepath.Join(dir, "log")}}
	made := func(id core.ID, opts map[string]string, sinks []core.Sink) *core.Container {
		return &core.Container{Meta: core.Meta{ID: id, Owner: "cri", Key: core.Key(id)}, State: core.ContainerRunning, Config: core.ContainerConfig{
			LogDriver: &core.LogDriver{Name: "syslog", Options: opts}, IO: core.IO{Sinks: sinks},
		}}
	}
	all := []*core.Container{
		made("good", nil, sinks), made("bad", map[string]string{"syslog-format": "x"}, sinks), made("raw", nil, nil),
		made("file", map[string]string{"syslog-address": "tcp+tls://192.0.2.1", "syslog-tls-ca-cert": file}, sinks),
	}
	r := &Runner{Dir: filepath.Join(dir, "positions"), Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx, func() ([]*core.Container, error) { return all, nil })
	}()
	said := func() string {
		list, followed := r.Troubles()
		var b strings.Builder
		for _, x := range list {
			b.WriteString(x.Name)
			if x.Stopped {
				b.WriteString(" stopped")
			}
			b.WriteString(": " + x.Err.Error() + "\n")
		}
		if followed < 2 {
			return ""
		}
		return b.String()
	}
	roottest.Eventually(t, "the followers start", func() bool { return said() != "" })
	want := `bad stopped: log option syslog-format "x" is none of rfc3164, rfc5424, rfc5424micro
raw stopped: the container has no log with times and streams
file: log option syslog-tls: open ` + file + ": no such file or directory\n"
	if got := said(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	pem, err := os.ReadFile(ca.File)
	if err == nil {
		err = os.WriteFile(file, pem, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := said(); strings.Contains(got, "file:") || !strings.Contains(got, "raw stopped") {
		t.Errorf("with the file: %s", got)
	}
	after, err := r.Before(t.Context(), &core.Operation{Verb: core.VerbRemove, Container: all[1]})
	if err != nil {
		t.Fatal(err)
	}
	after(nil)
	if got := said(); strings.Contains(got, "bad") {
		t.Errorf("after the removal: %s", got)
	}
	cancel()
	<-done
	broken := &Runner{Dir: filepath.Join(file, "below"), Log: slog.New(slog.DiscardHandler)}
	ctx, cancel = context.WithCancel(t.Context())
	done = make(chan struct{})
	go func() {
		defer close(done)
		broken.Run(ctx, func() ([]*core.Container, error) { return all[:1], nil })
	}()
	roottest.Eventually(t, "a trouble of a node without the directory", func() bool {
		list, _ := broken.Troubles()
		return len(list) == 1 && list[0].Stopped
	})
	cancel()
	<-done
}
