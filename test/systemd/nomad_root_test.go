package systemd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/test/nodetest"
)

// nomadConfig is a file of the administrator's: a server and a client in one process, on a machine without
// a network. The package's own file has the directory and the block of the driver.
const nomadConfig = `data_dir = "/opt/nomad/data"
bind_addr = "127.0.0.1"
disable_update_check = true
server {
  enabled = true
  bootstrap_expect = 1
}
client {
  enabled = true
  network_interface = "lo"
  options = { "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault" }
}
`

// nomadUnit ends Nomad alone, as the unit of Nomad's own package does.
const nomadUnit = `[Service]
ExecStart=%s agent -config /etc/nomad.d
KillMode=process
KillSignal=SIGINT
LimitNOFILE=65536
TasksMax=infinity
OOMScoreAdjust=-1000
`

const nomadJob = `job "beats" {
  type = "service"
  group "one" {
    task "main" {
      driver = "longshore"
      config {
        image   = %q
        command = "/bin/sh"
        args    = ["-c", ": of-a-job; while :; do echo beat >>/local/beats; sleep 1; done"]
      }
      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
`

// nomadAllocation is an allocation in an answer of Nomad's API.
type nomadAllocation struct {
	ID           string
	ClientStatus string
	TaskStates   map[string]struct {
		State    string
		Restarts int
	}
}

// TestNomadPackage installs the Debian package longshore-nomad beside a real Nomad. A job runs through an upgrade
// of the packages, a restart of Nomad, and the way back.
func TestNomadPackage(t *testing.T) {
	g := bareGuest(t)
	program := os.Getenv("NOMAD")
	if program == "" {
		t.Skip("needs Nomad: set NOMAD to its binary")
	}
	g.uninstall()
	g.baseDpkg()
	g.run("dpkg", "-i", deb("1.0.0", "longshore"), deb("1.0.0", "longshore-nomad"))
	g.serves()
	image := g.Busybox(t)

	g.write("/etc/nomad.d/nomad.hcl", nomadConfig)
	g.write("/etc/systemd/system/nomad.service", fmt.Sprintf(nomadUnit, program))
	g.run("systemctl", "daemon-reload")
	t.Cleanup(func() { g.endNomad() })
	g.run("systemctl", "start", "nomad.service")
	g.driverIsHealthy()
	file := filepath.Join(t.TempDir(), "beats.nomad.hcl")
	g.write(file, fmt.Sprintf(nomadJob, image))
	g.run(program, "job", "run", "-detach", file)
	a := g.nomadTask()
	w := workloads{g: g, files: map[string]string{"of-a-job": filepath.Join("/opt/nomad/data/alloc", a.ID, "main/local/beats")}}
	was := w.processes()
	main := g.property(agent, "MainPID")

	goesOn := func(occasion, version string) {
		t.Helper()
		t.Log(occasion)
		g.driverIsHealthy()
		w.goOn(was)
		if now := g.nomadTask(); now.ID != a.ID || now.TaskStates["main"].Restarts != 0 {
			t.Errorf("%s: the allocation was %s, and is %+v", occasion, a.ID, now)
		}
		if out := g.run("longshore", "version"); !strings.Contains(out, "process   agent "+version+", pid "+main) {
			t.Errorf("%s: the agent is not %s with the pid %s: %s", occasion, version, main, out)
		}
		if out := g.run(program, "alloc", "exec", "-i=false", "-t=false", a.ID, "/bin/echo", "inside"); out != "inside" {
			t.Errorf("%s: an exec says %q", occasion, out)
		}
	}
	g.run("dpkg", "-i", deb("2.0.0", "longshore"), deb("2.0.0", "longshore-nomad"))
	g.serves()
	goesOn("after the upgrade, with the old plugin", "2.0.0")
	g.run("systemctl", "restart", "nomad.service")
	goesOn("after Nomad's restart, with the new plugin", "2.0.0")
	g.run("dpkg", "-i", deb("1.0.0", "longshore"), deb("1.0.0", "longshore-nomad"))
	g.serves()
	goesOn("after the downgrade", "(devel)") // the first package has the programs of bin

	g.run(program, "job", "stop", "-detach", "-purge", "beats")
	nodetest.Eventually(t, "the task has ended", func() bool {
		pid, _, _ := strings.Cut(was["of-a-job"], " ")
		_, err := os.Stat("/proc/" + pid)
		return errors.Is(err, fs.ErrNotExist)
	})
	g.endNomad()
	g.run("dpkg", "--purge", "longshore-nomad", "longshore")
	g.nothingRuns()
	for path, stays := range map[string]bool{"/etc/nomad.d/nomad.hcl": true, "/etc/nomad.d/longshore.hcl": false, "/usr/lib/nomad": false} {
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("after the purge: %s: %v", path, err)
		}
	}
}

// driverIsHealthy waits until Nomad's node has the driver.
func (g guest) driverIsHealthy() {
	g.t.Helper()
	var said string
	g.t.Cleanup(func() {
		if g.t.Failed() {
			g.t.Logf("Nomad's node said at last: %s", said)
		}
	})
	nodetest.Eventually(g.t, "the driver is healthy", func() bool {
		var nodes []struct{ ID string }
		if !g.nomad("/v1/nodes", &nodes) || len(nodes) != 1 {
			return false
		}
		var node struct {
			Status  string
			Drivers map[string]struct {
				Detected, Healthy bool
				HealthDescription string
			}
		}
		if !g.nomad("/v1/node/"+nodes[0].ID, &node) {
			return false
		}
		said = fmt.Sprintf("%+v", node)
		return node.Status == "ready" && node.Drivers["longshore"].Healthy
	})
}

// nomadTask waits until the job's task runs.
func (g guest) nomadTask() (a nomadAllocation) {
	g.t.Helper()
	var said string
	g.t.Cleanup(func() {
		if g.t.Failed() {
			g.t.Logf("Nomad's allocations were at last: %s", said)
		}
	})
	nodetest.Eventually(g.t, "the task runs", func() bool {
		var all []nomadAllocation
		if !g.nomad("/v1/job/beats/allocations", &all) || len(all) != 1 {
			return false
		}
		a, said = all[0], fmt.Sprintf("%+v", all)
		return a.ClientStatus == "running" && a.TaskStates["main"].State == "running"
	})
	return a
}

// nomad reads Nomad's API into v, and reports whether it answered.
func (g guest) nomad(path string, v any) bool {
	ctx, cancel := context.WithTimeout(g.t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:4646"+path, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(v) == nil
}

// endNomad stops Nomad and takes its files away, when the test is over too.
func (g guest) endNomad() {
	g.t.Helper()
	script := `systemctl stop nomad.service 2>/dev/null
rm -f /etc/systemd/system/nomad.service
grep -o ' /opt/nomad/[^ ]*' /proc/self/mountinfo | sort -r | xargs -r umount
rm -rf /opt/nomad && systemctl daemon-reload`
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil { //nolint:forbidigo // the test may be over
		g.t.Errorf("the end of Nomad: %v: %s", err, out)
	}
}
