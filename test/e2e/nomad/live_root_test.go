package nomad

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// TestATaskIsWorkedWithWhileItRuns: templates that change, scripts, a terminal, a
// log that is followed, and a new version of the job.
func TestATaskIsWorkedWithWhileItRuns(t *testing.T) {
	start(t, options{}, func(r *rig) {
		version := func(n string) string {
			return job("live", "service", `
    update {
      min_healthy_time = "0s"
    }`, `
      template {
        data          = "{{ with nomadVar \"nomad/jobs/live\" }}{{ .text }}{{ end }}"
        destination   = "local/signal"
        change_mode   = "signal"
        change_signal = "SIGHUP"
      }
      template {
        data          = "{{ with nomadVar \"nomad/jobs/live\" }}{{ .text }}{{ end }}{{/* Nomad 1.10 renders one of two templates of one text */}}"
        destination   = "local/script"
        change_mode   = "script"
        change_script {
          command = "/bin/sh"
          args    = ["-c", "cp /local/script /alloc/data/by-script"]
        }
      }`, `args = ["-c", "trap 'echo HUP with $(cat /local/signal)' HUP; echo version `+n+`; while true; do sleep 0.1; done"]`)
		}
		r.eventually("Nomad keeps a variable", func() bool { // 1.10 makes its keys a little after its drivers
			_, err := r.nomad("var", "put", "-force", "nomad/jobs/live", "text=first")
			return err == nil
		})
		r.run(version("1"))
		a := r.allocation("live", "running")
		r.logged(a, "version 1")
		follow := exec.Command(r.binary, "alloc", "logs", "-f", a.ID, "main") //nolint:forbidigo // ended below
		follow.Env = append(follow.Environ(), "NOMAD_ADDR="+address)
		followed, err := follow.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := follow.Start(); err != nil {
			t.Fatal(err)
		}
		r.must("var", "put", "-force", "nomad/jobs/live", "text=second")
		var seen strings.Builder
		buf := make([]byte, 4096)
		for !strings.Contains(seen.String(), "HUP with second") {
			n, err := followed.Read(buf)
			seen.Write(buf[:n])
			if err != nil {
				t.Fatalf("the followed log ended: %v after %q", err, seen.String())
			}
		}
		_ = follow.Process.Kill()
		_ = follow.Wait()
		r.eventually("the script has run", func() bool {
			out, err := r.nomad("alloc", "fs", a.ID, "alloc/data/by-script")
			return err == nil && out == "second"
		})
		r.terminal(a)
		r.run(version("2"))
		r.eventually("version 2 runs in place of version 1", func() bool {
			running := 0
			for _, b := range r.allocs("live") {
				if b.ID != a.ID && b.ClientStatus == "running" {
					running++
				}
				if b.ID == a.ID && b.ClientStatus != "complete" {
					return false
				}
			}
			return running == 1
		})
		r.purge("live")
		r.nothingLeft()
	})
}

// terminal runs a command on a terminal, which is resized while it runs.
func (r *rig) terminal(a alloc) {
	r.t.Helper()
	ours, theirs := pty(r.t)
	resize := func(rows, cols uint16) {
		r.t.Helper()
		if err := unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
			r.t.Fatal(err)
		}
	}
	resize(33, 77)
	script := `tty; trap 'test "$(stty size)" = "40 100" && exit 5' WINCH; until stty size | grep -q "33 77"; do sleep 0.1; done; echo re""ady; while true; do sleep 0.1; done`
	ctx, cancel := context.WithTimeout(r.t.Context(), roottest.Patience())
	defer cancel()
	cmd := exec.CommandContext(ctx, r.binary, "alloc", "exec", "-i", "-t", a.ID, "/bin/sh", "-c", script)
	cmd.Env = append(cmd.Environ(), "NOMAD_ADDR="+address)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	_ = theirs.Close()
	var seen strings.Builder
	resized := false
	buf := make([]byte, 4096)
	for {
		n, err := ours.Read(buf) // EIO when the other side has gone
		seen.Write(buf[:n])
		if !resized && strings.Contains(seen.String(), "ready") {
			resize(40, 100)
			resized = true
		}
		if err != nil {
			break
		}
	}
	err := cmd.Wait()
	if !resized || cmd.ProcessState.ExitCode() != 5 || !strings.Contains(seen.String(), "/dev/pts/") {
		r.t.Errorf("a terminal, resized %t: %q, %v", resized, seen.String(), err)
	}
}

// pty makes a terminal: ours is a person's end, and theirs the programs'.
func pty(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

// TestNetworks: the group's bridge with its ports, ours with the task's, and one
// task in the other's.
func TestNetworks(t *testing.T) {
	start(t, options{}, func(r *rig) {
		serve := `args = ["-c", "mkdir /www; echo from $NOMAD_TASK_NAME > /www/index.html; grep $(hostname) /etc/hosts; exec httpd -f -p 8080 -h /www"]`
		ours := job("ours", "service", `
    network {
      port "http" { to = 8080 }
    }`, `
      service {
        name         = "ours"
        port         = "http"
        provider     = "nomad"
        address_mode = "driver"
      }`, serve+`
        ports = ["http"]`)
		r.run(ours)
		a := r.allocation("ours", "running")
		if got := fetch(t, r, fmt.Sprintf("http://127.0.0.1:%d/", r.port(a, "http"))); got != "from main\n" {
			t.Errorf("through the published port: %q", got)
		}
		var services []struct{ Address string }
		r.eventually("the service is registered", func() bool { return r.get("/v1/service/ours", &services) && len(services) == 1 })
		if !strings.HasPrefix(services[0].Address, "10.") {
			t.Errorf("the service's address is %s", services[0].Address)
		}
		r.purge("ours")
		if r.node().Attributes["plugins.cni.version.bridge"] == "" {
			t.Log("this Nomad finds no CNI plugins: the group's bridge is not tried")
			r.nothingLeft()
			return
		}
		group := job("group", "service", `
    network {
      mode = "bridge"
      port "http" { to = 8080 }
    }
    task "side" {
      driver = "longshore"
      lifecycle {
        hook    = "poststart"
        sidecar = true
      }
      config {
        image   = "IMAGE"
        command = "/bin/sh"
        args    = ["-c", "while true; do wget -q -O - http://127.0.0.1:8080/ && break; sleep 0.1; done; while true; do sleep 1; done"]
      }
      resources {
        cpu    = 50
        memory = 16
      }
    }`, "", serve)
		r.run(group)
		b := r.allocation("group", "running")
		if got := fetch(t, r, fmt.Sprintf("http://127.0.0.1:%d/", r.port(b, "http"))); got != "from main\n" {
			t.Errorf("through the group's port: %q", got)
		}
		if out := r.logged(b, "\n"); strings.HasPrefix(out, "127.") || !strings.HasSuffix(strings.TrimSpace(out), "\tmain") {
			t.Errorf("its own name is at %q", out)
		}
		r.eventually("the other task of the group reaches it by loopback", func() bool {
			out, err := r.nomad("alloc", "logs", b.ID, "side")
			return err == nil && strings.Contains(out, "from main")
		})
		r.purge("group")
		r.nothingLeft()
	})
}

func (r *rig) port(a alloc, label string) int {
	r.t.Helper()
	var full struct {
		AllocatedResources struct {
			Shared struct {
				Ports []struct {
					Label string
					Value int
				}
			}
		}
	}
	if !r.get("/v1/allocation/"+a.ID, &full) {
		r.t.Fatal("no allocation")
	}
	for _, p := range full.AllocatedResources.Shared.Ports {
		if p.Label == label {
			return p.Value
		}
	}
	r.t.Fatalf("no port %s", label)
	return 0
}

func fetch(t *testing.T, r *rig, url string) (body string) {
	t.Helper()
	client := &http.Client{Timeout: 2 * time.Second}
	r.eventually(url+" answers", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		body = string(b)
		return err == nil && resp.StatusCode == http.StatusOK
	})
	return body
}
