package native_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/nativetest"
)

// TestHooksHaveWhatTheirPlaceGives: a createContainer hook is ours and may do
// anything to the container; a startContainer hook is a program of the
// container's and has no more than that.
func TestHooksHaveWhatTheirPlaceGives(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		const look = `grep -E "^(Uid|CapEff|NoNewPrivs|Seccomp):" /proc/self/status | tr -s "\t" " " | tr "\n" ";"`
		for name, edit := range map[string]func(*specs.Spec){"ours": func(*specs.Spec) {}, "a user namespace": func(s *specs.Spec) {
			nativetest.AddNamespace(s, specs.LinuxNamespace{Type: specs.UserNamespace})
			s.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: 100000, Size: 65536}}
			s.Linux.GIDMappings = s.Linux.UIDMappings
		}} {
			s := script(look)
			edit(s)
			s.Process.User = specs.User{UID: 7, GID: 8}
			s.Process.Capabilities, s.Process.NoNewPrivileges = &specs.LinuxCapabilities{}, true
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"acct"}, Action: specs.ActErrno}}}
			for _, f := range []string{"/create", "/start"} {
				if err := os.WriteFile(n.root+"/tmp"+f, nil, 0o666); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(n.root+"/tmp"+f, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			hook := func(file string) []specs.Hook {
				return []specs.Hook{{Path: "/bin/busybox", Args: []string{"sh", "-c", look + " > " + file}, Env: []string{"PATH=" + n.root + "/bin:/bin"}}}
			}
			s.Hooks = &specs.Hooks{CreateContainer: hook(n.root + "/tmp/create"), StartContainer: hook("/tmp/start")}
			program := n.output(t, s)
			start, err := os.ReadFile(n.root + "/tmp/start")
			if err != nil || string(start) != program || !strings.Contains(program, "Uid: 7 7 7 7;CapEff: 0000000000000000;NoNewPrivs: 1;Seccomp: 2;") {
				t.Errorf("%s: the hook has %q, the program %q, %v", name, start, program, err)
			}
			create, err := os.ReadFile(n.root + "/tmp/create")
			if err != nil || !strings.HasPrefix(string(create), "Uid: 0 0 0 0;") || strings.Contains(string(create), "CapEff: 0000000000000000") {
				t.Errorf("%s: the hook of the creation has %q, %v", name, create, err)
			}
		}
	})
}

// TestACancelledCreateStopsItsHook: nothing of either is left.
func TestACancelledCreateStopsItsHook(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		if err := unix.Mkfifo("/run/told", 0o600); err != nil {
			t.Fatal(err)
		}
		s := script("true")
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/busybox", Args: []string{"sh", "-c", "exec 3> /run/told; echo > /run/told; exec /bin/busybox sleep 1000"}}}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := n.create(ctx, t, s)
			done <- err
		}()
		f, err := os.Open("/run/told")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if _, err := f.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "hooks.createRuntime[0]") {
			t.Errorf("%v", err)
		}
		if n, err := f.Read(make([]byte, 1)); n != 0 || err == nil { // the hook's end closes it
			t.Errorf("read %d, %v", n, err)
		}
		ids, err := n.runtime.List(t.Context())
		if err != nil || len(ids) > 0 {
			t.Errorf("left: %v, %v", ids, err)
		}
	})
}
