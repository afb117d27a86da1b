package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const confineEnv = "LONGSHORE_TEST_CONFINE"

// confineJob has the confined process's targets.
type confineJob struct{ Root, Hosts, CA, Beside, Listener string }

// TestMain lets the test binary be the confined process.
func TestMain(m *testing.M) {
	if text := os.Getenv(confineEnv); text != "" {
		os.Exit(tryConfined(text))
	}
	os.Exit(m.Run())
}

func tryConfined(text string) int {
	var job confineJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return 3
	}
	how, err := Confine(job.Root, []string{job.Hosts})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	result := map[string]string{"confinement": how}
	for name, try := range attempts(job) {
		result[name] = "ok"
		done := make(chan error) // in another thread, as jobs are
		go func() { done <- try() }()
		if err := <-done; err != nil {
			result[name] = err.Error()
		}
	}
	if json.NewEncoder(os.Stdout).Encode(result) != nil {
		return 3
	}
	return 0
}

func attempts(job confineJob) map[string]func() error {
	in := func(name string) string { return filepath.Join(job.Root, name) }
	read := func(path string) func() error {
		return func() error { _, err := os.ReadFile(path); return err }
	}
	return map[string]func() error{
		"may write": func() error { return os.WriteFile(in("a"), []byte("x"), 0o600) },
		"may rename": func() error {
			if err := os.MkdirAll(in("x/y"), 0o700); err != nil {
				return err
			}
			if err := os.Symlink("nowhere", in("x/y/from")); err != nil {
				return err
			}
			return os.Rename(in("x/y/from"), in("to"))
		},
		"may dial": func() error {
			c, err := new(net.Dialer).DialContext(context.Background(), "tcp", job.Listener)
			if err == nil {
				err = c.Close()
			}
			return err
		},
		"may read hosts":    read(filepath.Join(job.Hosts, "hosts.toml")),
		"may read named CA": read(job.CA),
		"may trusted xattr": func() error { return unix.Setxattr(job.Root, "trusted.overlay.opaque", []byte("y"), 0) },
		"may mknod":         func() error { return unix.Mknod(in("null"), unix.S_IFCHR, 0) },
		"may chown":         func() error { return os.Lchown(job.Root, 1234, 5678) },

		"not read":         read("/etc/passwd"),
		"not read proc":    read("/proc/self/environ"),
		"not write beside": func() error { return os.WriteFile(job.Beside, []byte("x"), 0o600) },
		"not list":         func() error { _, err := os.ReadDir("/"); return err },
		"not exec":         func() error { return unix.Exec("/bin/true", []string{"true"}, nil) },
		"not unix": func() error {
			_, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			return err
		},
		"not packet": func() error {
			_, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
			return err
		},
		"not mount":   func() error { return unix.Mount("x", job.Root, "tmpfs", 0, "") },
		"not unshare": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"not kill":    func() error { return unix.Kill(os.Getppid(), 0) },
		"not ptrace":  func() error { return unix.PtraceAttach(os.Getppid()) },
		"not setuid": func() error {
			_, _, errno := unix.RawSyscall(unix.SYS_SETUID, uintptr(os.Getuid()), 0, 0)
			if errno != 0 {
				return errno
			}
			return nil
		},
	}
}

func TestConfinement(t *testing.T) {
	if LandlockABI() < 2 {
		t.Skip("this kernel has no usable Landlock")
	}
	base := t.TempDir()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	job := confineJob{Root: base + "/root", Hosts: base + "/certs.d", CA: base + "/elsewhere/ca.pem", Beside: base + "/beside", Listener: l.Addr().String()}
	for path, text := range map[string]string{job.Root + "/x": "", job.CA: "pem", job.Hosts + "/hosts.toml": "[host.\"https://x\"]\nca = \"" + job.CA + "\"\n"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	arg, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), confineEnv+"="+string(arg))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var got map[string]string
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", got["confinement"])
	for name, result := range got {
		switch {
		case name == "confinement":
		case os.Geteuid() != 0 && (name == "may trusted xattr" || name == "may chown"):
		case strings.HasPrefix(name, "may ") && result != "ok":
			t.Errorf("%s: %s", name, result)
		case strings.HasPrefix(name, "not ") && !strings.Contains(result, "permitted") && !strings.Contains(result, "denied"):
			t.Errorf("%s: %s", name, result)
		}
	}
	if os.Geteuid() == 0 && !strings.Contains(got["confinement"], "7 capabilities") {
		t.Errorf("confinement %q", got["confinement"])
	}
}
