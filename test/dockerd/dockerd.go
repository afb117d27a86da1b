// Package dockerd runs Debian's dockerd from its unpacked packages (hack/dockerd.sh), for tests and
// measurements beside it: in a directory of its own, and in the network and mount namespaces of its
// caller.
//
// dockerd.go knows nothing of dockerd's work, swarm.go makes it manage a Swarm. Start at Start.
package dockerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DirEnv names the directory of the unpacked packages.
const DirEnv = "LONGSHORE_DOCKER_DIR"

// Options are the parameters of Start.
type Options struct {
	// Packages is the directory of the unpacked packages.
	Packages string
	// Home is its own directory, for all that it keeps.
	Home string
	// Flags come after those that it has in any case.
	Flags []string
	// Wrap begins the command line, and ends with executing the rest; nil is nothing.
	Wrap func(argv ...string) []string
}

// Daemon is one dockerd, which runs from Start to Stop, and from Restart after Kill, with its files
// in Home.
type Daemon struct {
	o      Options
	cmd    *exec.Cmd
	exited chan struct{}
	http   *http.Client
}

// Start starts one, without waiting until it answers.
func Start(o Options) (*Daemon, error) {
	d := &Daemon{o: o, http: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(o.Home, "sock"))
	}}}}
	if err := os.MkdirAll(o.Home, 0o700); err != nil {
		return nil, err
	}
	return d, d.Restart()
}

// Restart starts it again after Kill or Stop, without waiting until it answers.
func (d *Daemon) Restart() error {
	log, err := os.OpenFile(filepath.Join(d.o.Home, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	home := d.o.Home
	argv := d.o.alone(append([]string{
		filepath.Join(d.o.Packages, "usr/sbin/dockerd"),
		"--data-root", home + "/data", "--exec-root", home + "/exec", "--pidfile", home + "/pid", "--host", "unix://" + home + "/sock",
	}, d.o.Flags...)...)
	if d.o.Wrap != nil {
		argv = d.o.Wrap(argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:forbidigo // it outlives the contexts of its callers
	cmd.Env, cmd.Stdout, cmd.Stderr = d.env(), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	d.cmd, d.exited = cmd, exited
	return nil
}

// alone is argv in a mount namespace of its own, without the second hierarchy of a hybrid machine, which
// dockerd counts among the first one's, and with the limit of its unit. Packages that have a C library of their own lie over /usr there.
func (o Options) alone(argv ...string) []string {
	script := `ulimit -c unlimited; umount -l /sys/fs/cgroup/unified 2>/dev/null; `
	if o.loader() != "" {
		script += `mount -t overlay -o "lowerdir=` + o.Packages + `/usr:/usr" overlay /usr || exit; `
	}
	return append([]string{"unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script + `exec "$0" "$@"`}, argv...)
}

// loader is the dynamic loader of packages that have a C library of their own (hack/dockerd.sh DIR SUITE);
// "" is that of the machine.
func (o Options) loader() string {
	for _, pattern := range []string{"/usr/lib64/ld-linux-*.so.*", "/usr/lib/ld-linux-*.so.*"} {
		if found, _ := filepath.Glob(o.Packages + pattern); len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// libraries are where the packages have theirs.
func (o Options) libraries() string {
	libs, _ := filepath.Glob(o.Packages + "/lib/*-linux-gnu")
	more, _ := filepath.Glob(o.Packages + "/usr/lib/*-linux-gnu")
	return strings.Join(append(libs, more...), ":")
}

// CLI is how docker's command line is started from unpacked packages.
func CLI(packages string) []string {
	o := Options{Packages: packages}
	program := filepath.Join(packages, "usr/bin/docker")
	if loader := o.loader(); loader != "" {
		return []string{loader, "--library-path", o.libraries(), program}
	}
	return []string{program}
}

// env is the environment of the unpacked programs.
func (d *Daemon) env() []string {
	env := append(os.Environ(), "HOME="+d.o.Home,
		"PATH="+filepath.Join(d.o.Packages, "usr/bin")+":"+filepath.Join(d.o.Packages, "usr/sbin")+":"+os.Getenv("PATH"))
	if d.o.loader() != "" {
		return env // the machine's own programs do not start with another C library and their loader
	}
	return append(env, "LD_LIBRARY_PATH="+strings.Trim(d.o.libraries()+":"+os.Getenv("LD_LIBRARY_PATH"), ":"))
}

// Answers waits until it answers. The error of one that has ended has the end of its log. One
// that has ended because its containerd was not there within 15 seconds, which it waits for, is
// started again: the machine is busy.
func (d *Daemon) Answers(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := d.Get(ctx, "/version", &struct{}{})
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-d.exited:
			end := d.LogTail()
			if !strings.Contains(end[strings.LastIndexByte(strings.TrimSpace(end), '\n')+1:], "timeout waiting for containerd to start") {
				return fmt.Errorf("dockerd has ended:\n%s", end)
			}
			if err := d.Restart(); err != nil {
				return err
			}
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// Get asks its API for JSON.
func (d *Daemon) Get(ctx context.Context, path string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://dockerd"+path, nil)
	if err != nil {
		return err
	}
	resp, err := d.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %s", path, resp.Status, strings.TrimSpace(string(body)))
	}
	return json.Unmarshal(body, answer)
}

// Filter is the query of a filtered list of the API.
func Filter(key, value string) string {
	f, _ := json.Marshal(map[string][]string{key: {value}}) // strings are encoded always
	return "?filters=" + url.QueryEscape(string(f))
}

// Command is one of docker's command line, which is not started yet.
func (d *Daemon) Command(ctx context.Context, args ...string) *exec.Cmd {
	argv := append(append(CLI(d.o.Packages), "--host", "unix://"+d.o.Home+"/sock"), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = d.env()
	return cmd
}

// Docker runs a command of docker's command line and returns its output.
func (d *Daemon) Docker(ctx context.Context, args ...string) (string, error) {
	cmd := d.Command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// LogTail is the end of its log.
func (d *Daemon) LogTail() string {
	data, _ := os.ReadFile(filepath.Join(d.o.Home, "log"))
	return string(data[max(0, len(data)-4000):])
}

// Logged returns how often its log has a text.
func (d *Daemon) Logged(text string) int {
	data, _ := os.ReadFile(filepath.Join(d.o.Home, "log"))
	return strings.Count(string(data), text)
}

// Lacks finds in its log the ability of the kernel without which it did not start; "" when
// it runs, or ended for another reason.
func (d *Daemon) Lacks() string { return lacks(d.LogTail()) }

func lacks(log string) string {
	for line := range strings.Lines(log) {
		_, why, fatal := strings.Cut(line, "failed to start daemon: ")
		if !fatal {
			continue
		}
		for _, ability := range []string{"cgroup", "Cgroup", "operation not permitted", "not supported", "function not implemented", "no such device", "iptables"} {
			if strings.Contains(why, ability) {
				return strings.TrimSpace(why)
			}
		}
	}
	return ""
}

// Stop asks it to end, and waits until it has.
func (d *Daemon) Stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	<-d.exited
}

// Kill ends it as a power cut does, and waits until it is gone. Mounts in a namespace of its own
// are gone with it.
func (d *Daemon) Kill() error {
	_ = d.cmd.Process.Kill()
	<-d.exited
	// Its containerd dies with it. Where nobody takes that exit, as in a small pid
	// namespace, the next dockerd would take it for alive.
	err := os.Remove(d.o.Home + "/exec/containerd/containerd.pid")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// RemoveHome removes a dockerd's directory with the mounts of a killed one.
func RemoveHome(home string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, home+"/") {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	}
	return os.RemoveAll(home)
}
