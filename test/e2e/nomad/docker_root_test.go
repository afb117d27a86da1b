package nomad

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// startDocker starts the dockerd of DOCKERD for Nomad's own driver, with all its files in the rig's
// directory; without one Nomad has no docker. Its programs lie beside it, in bin, or in PATH:
// containerd, runc, docker-init.
func (r *rig) startDocker() {
	r.t.Helper()
	binary := os.Getenv("DOCKERD")
	if binary == "" {
		return
	}
	dir := r.dockerDir()
	if err := os.MkdirAll(dir, 0o711); err != nil {
		r.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		r.t.Fatal(err)
	}
	// As docker's systemd unit does, by LimitCORE=infinity. Its containers inherit it.
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		r.t.Fatal(err)
	}
	core.Cur = core.Max
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &core); err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(binary, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"), //nolint:forbidigo // it outlives the contexts of subtests
		"--pidfile", filepath.Join(dir, "pid"), "--host", "unix://"+r.dockerSocket())
	cmd.Stdout, cmd.Stderr = log, log
	beside := filepath.Dir(binary)
	cmd.Env = append(os.Environ(), "PATH="+beside+":"+filepath.Join(filepath.Dir(beside), "bin")+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.docker = cmd
	r.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = log.Close()
		if out, _ := os.ReadFile(log.Name()); r.t.Failed() {
			r.t.Logf("dockerd's log, its end:\n%s", out[max(0, len(out)-4000):])
		}
	})
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.dockerSocket())
	}}}
	defer client.CloseIdleConnections()
	r.eventually("dockerd answers", func() bool {
		req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://docker/_ping", nil)
		if err != nil {
			r.t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	})
}

func (r *rig) dockerDir() string    { return filepath.Join(r.dir, "docker") }
func (r *rig) dockerSocket() string { return filepath.Join(r.dockerDir(), "sock") }
