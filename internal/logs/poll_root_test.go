package logs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs"
	"github.com/longshore/longshore/internal/roottest"
)

// withoutEnv says that this process is to have no inotify instance.
const withoutEnv = "LOGS_TEST_WITHOUT_INOTIFY"

// TestFollowWithoutInotify follows a log in a user namespace that may have no inotify instance, as
// if a container had used up all of uid 0.
func TestFollowWithoutInotify(t *testing.T) {
	if os.Getenv(withoutEnv) == "" {
		roottest.Run(t, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestFollowWithoutInotify$", "-test.v")
			cmd.Env = append(os.Environ(), withoutEnv+"=1")
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{Size: 1}}, GidMappings: []syscall.SysProcIDMap{{Size: 1}},
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
		return
	}
	if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC); err == nil {
		t.Fatalf("there is an inotify instance, %d: this proves nothing", fd)
	}
	sink := core.Sink{Format: core.FormatCRI, Path: filepath.Join(t.TempDir(), "0.log")}
	line := func(text string) {
		f, err := os.OpenFile(sink.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(time.Now().UTC().Format(time.RFC3339Nano) + " stdout F " + text + "\n"); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	line("one")
	ended, got, done := make(chan struct{}), make(chan string, 3), make(chan error, 1)
	go func() {
		done <- logs.Read(t.Context(), sink, logs.Options{Follow: true, Ended: ended}, func(e logs.Entry) error {
			got <- string(e.Text)
			return nil
		})
	}()
	want := func(text string) {
		t.Helper()
		select {
		case s := <-got:
			if s != text {
				t.Fatalf("got %q, want %q", s, text)
			}
		case err := <-done:
			t.Fatalf("the log ended before %q: %v", text, err)
		case <-time.After(roottest.Patience()):
			t.Fatalf("%q never came", text)
		}
	}
	want("one")
	line("two")
	want("two")
	if err := os.Rename(sink.Path, sink.Path+".1"); err != nil { // a rotation
		t.Fatal(err)
	}
	line("three")
	want("three")
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
