package plugins_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/plugins"
	"github.com/longshore/longshore/internal/roottest"
)

// plugin writes a shell script and returns its path.
func plugin(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// leaving is a plugin that answers and leaves a process, which holds the plugin's output. Its
// number is in the file.
func leaving(t *testing.T, then string) (path, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "pid")
	return plugin(t, "echo '{}'\nsh -c 'echo $$ >"+file+".part; mv "+file+".part "+file+"; exec sleep 600' &\nwhile ! [ -e "+file+" ]; do :; done\n"+then), file
}

func pidIn(t *testing.T, file string) int {
	t.Helper()
	roottest.Eventually(t, "the plugin's child", func() bool { _, err := os.Stat(file); return err == nil })
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	return pid
}

func TestAProcessThatAPluginLeavesHoldsNobodyUp(t *testing.T) {
	path, file := leaving(t, "")
	x := &plugins.Exec{Timeout: time.Minute}
	out, err := x.ExecPlugin(t.Context(), path, nil, os.Environ())
	if err != nil || string(out) != "{}\n" {
		t.Errorf("%q, %v", out, err)
	}
	if err := unix.Kill(pidIn(t, file), 0); err != nil {
		t.Errorf("a successful plugin's child was killed: %v", err)
	}
}

func TestLibcnisOwnExecWaitsForTheProcessThatAPluginLeaves(t *testing.T) {
	path, file := leaving(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := (&invoke.RawExec{Stderr: io.Discard}).ExecPlugin(ctx, path, nil, os.Environ())
		done <- err
	}()
	pid := pidIn(t, file)
	<-ctx.Done()
	select {
	case err := <-done:
		t.Errorf("it has returned: the test before sees no fault: %v", err)
	case <-time.After(time.Second):
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	<-done
}

func TestACallCanBeGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		timeout time.Duration
		cancel  bool
		want    error
	}{"by the caller": {time.Minute, true, context.Canceled}, "by its time": {time.Second, false, context.DeadlineExceeded}} {
		t.Run(name, func(t *testing.T) {
			path, file := leaving(t, "sleep 600\n")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				x := &plugins.Exec{Timeout: c.timeout}
				_, err := x.ExecPlugin(ctx, path, nil, os.Environ())
				done <- err
			}()
			pid := pidIn(t, file)
			if c.cancel {
				cancel()
			}
			if err := <-done; !errors.Is(err, c.want) || !strings.Contains(err.Error(), "plugin") {
				t.Errorf("error %v", err)
			}
			roottest.Eventually(t, "the end of the plugin's child", func() bool {
				b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
				return err != nil || strings.Contains(string(b), ") Z ")
			})
		})
	}
}

func TestFailuresHaveTheirClass(t *testing.T) {
	x := &plugins.Exec{Timeout: time.Minute}
	for script, want := range map[string]string{
		"echo said >&2; exit 1": "said",
		"exit 3":                "without a message: exit status 3",
		"echo not json; exit 1": "is not CNI's",
		`echo '{"code": 11, "msg": "not yet"}'; exit 1`:        "not yet",
		"head -c 5000000 /dev/zero":                            "wrote more than",
		`echo '{"code": 7, "msg": "bad network"}' ; exit 1`:    "bad network",
		`echo '{"code": 999, "msg": "of its own"}' ; exit 200`: "of its own",
	} {
		_, err := x.ExecPlugin(t.Context(), plugin(t, script), nil, os.Environ())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", script, err)
		}
		if err = plugins.Classify(err); errdefs.IsUnavailable(err) != (want == "not yet") || errdefs.IsFailedPrecondition(err) != (want == "bad network") {
			t.Errorf("%s: class of %v", script, err)
		}
	}
	if err := plugins.Classify(&types.Error{Code: types.ErrTryAgainLater}); !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
}

func TestAPluginThatIsBeingWrittenIsTriedAgain(t *testing.T) {
	path := plugin(t, "echo done")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(500*time.Millisecond, func() { _ = f.Close() })
	x := &plugins.Exec{Timeout: time.Minute}
	if out, err := x.ExecPlugin(t.Context(), path, nil, os.Environ()); err != nil || string(out) != "done\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestConfigsAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	c := plugins.NewConfigs(dir, slog.New(slog.DiscardHandler))
	if _, err := c.Network(""); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
	for name, text := range map[string]string{
		"10-old.conf": `{"cniVersion": "0.4.0", "name": "old", "type": "bridge"}`, "20-none.conflist": `{"cniVersion": "1.0.0", "name": "none", "plugins": []}`,
		"README": "no configuration",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := c.Network("")
	if err != nil || list.Name != "old" || list.Plugins[0].Network.Type != "bridge" {
		t.Fatalf("%+v, %v", list, err)
	}
	if raw, err := plugins.Encode(list); err != nil || !strings.Contains(string(raw), `"type":"bridge"`) {
		t.Errorf("%s, %v", raw, err)
	}
	if _, err := c.Network("other"); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
}
