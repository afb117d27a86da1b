package nomad

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// noEffect is the message of the log that names the keys that this driver ignores.
const noEffect = "keys of the plugin's configuration have no effect"

// pluginBlocks are configurations of docker's and podman's drivers with all keys of their schemas but auth.helper,
// which the agent's configuration must allow, and the keys that have no effect.
var pluginBlocks = map[string]struct {
	config  string
	ignored []string
}{
	"docker": {
		config: `
    endpoint = "unix:///var/run/docker.sock"
    auth {
      config = "/etc/docker/config.json"
    }
    tls {
      cert = "/etc/docker/cert.pem"
      key  = "/etc/docker/key.pem"
      ca   = "/etc/docker/ca.pem"
    }
    extra_labels = ["job_name", "task_*"]
    logging {
      type = "json-file"
      config {
        max-file = "3"
        max-size = "5m"
      }
    }
    gc {
      image       = true
      image_delay = "1h"
      container   = true
      dangling_containers {
        enabled        = true
        period         = "10m"
        creation_grace = "2m"
        dry_run        = true
      }
    }
    volumes {
      enabled      = true
      selinuxlabel = "z"
    }
    allow_privileged          = true
    allow_caps                = ["chown", "net_bind_service"]
    nvidia_runtime            = "nvidia"
    allow_runtimes            = ["native", "runc"]
    infra_image               = "registry.example/pause:3"
    infra_image_pull_timeout  = "3m"
    image_pull_timeout        = "4m"
    container_exists_attempts = 3
    oom_score_adj             = 10
    pull_activity_timeout     = "1m"
    pids_limit                = 99
    disable_log_collection    = false
    windows_allow_insecure_container_admin = false
    allowed_modes {
      pid    = ["host"]
      ipc    = ["host"]
      userns = ["host"]
      uts    = ["host"]
    }`,
		ignored: []string{
			"allowed_modes.userns", "auth.config", "container_exists_attempts", "disable_log_collection", "endpoint", "extra_labels", "gc.container", "gc.dangling_containers", "infra_image",
			"infra_image_pull_timeout", "logging", "nvidia_runtime", "oom_score_adj", "pull_activity_timeout", "tls", "volumes.selinuxlabel", "windows_allow_insecure_container_admin",
		},
	},
	"podman": {
		config: `
    volumes {
      enabled      = true
      selinuxlabel = "z"
    }
    gc {
      container = true
    }
    logging {
      driver  = "journald"
      options = { tag = "x" }
    }
    auth {
      config = "/etc/containers/auth.json"
    }
    socket {
      name        = "default"
      socket_path = "unix:///run/podman/podman.sock"
    }
    socket {
      name        = "user"
      socket_path = "unix:///run/user/1000/podman.sock"
    }
    allow_caps             = ["chown"]
    recover_stopped        = true
    socket_path            = "unix:///run/podman/podman.sock"
    client_http_timeout    = "60s"
    dns_servers            = ["192.0.2.1"]
    disable_log_collection = false
    extra_labels           = ["job_name"]`,
		ignored: []string{
			"auth.config", "client_http_timeout", "disable_log_collection", "dns_servers", "extra_labels", "gc.container", "logging", "recover_stopped", "socket { }", "socket_path", "volumes.selinuxlabel",
		},
	},
}

// TestNomadTakesDockersPluginBlock starts Nomad with all keys of docker's driver, and its log names each
// key without effect once.
func TestNomadTakesDockersPluginBlock(t *testing.T) { takesPluginBlock(t, "docker") }

// TestNomadTakesPodmansPluginBlock is the same with podman's keys.
func TestNomadTakesPodmansPluginBlock(t *testing.T) { takesPluginBlock(t, "podman") }

func takesPluginBlock(t *testing.T, driver string) {
	t.Helper()
	block := pluginBlocks[driver]
	start(t, options{plugin: block.config}, func(r *rig) {
		// Keys with an effect have it: this one allows no other capability.
		r.run(job("runs", "batch", once, "", `args = ["-c", "echo it runs"]`))
		r.logged(r.allocation("runs", "complete"), "it runs")
		r.run(job("asks", "batch", once, "", "args = [\"-c\", \"true\"]\n cap_add = [\"SYS_TIME\"]"))
		if said := r.allocation("asks", "failed").said("main"); !strings.Contains(strings.ToUpper(said), "SYS_TIME") {
			t.Errorf("a capability outside of allow_caps:\n%s", said)
		}
		lines := r.logLines(noEffect)
		if want := strings.Join(block.ignored, ", "); len(lines) != 1 || !strings.Contains(lines[0], fmt.Sprintf("keys=%q", want)) {
			t.Errorf("the log does not say once that these keys have no effect: %s\nbut:\n%s", want, strings.Join(lines, "\n"))
		}
		r.purge("runs", "asks")
		r.must("system", "gc")
		r.nothingLeft()
	})
}

// socketKey returns the line of a plugin's block that names the agent's socket. A block with podman's blocks of that name
// cannot have it too: the agent's socket is then at its standard place, below the /run of the test.
func (r *rig) socketKey(plugin string) string {
	r.t.Helper()
	socket := filepath.Join(r.State, "nomad.sock")
	if !strings.Contains(plugin, "socket {") {
		return fmt.Sprintf("socket = %q", socket)
	}
	standard := "/run/longshore/nomad.sock"
	if err := errors.Join(os.MkdirAll(filepath.Dir(standard), 0o755), os.Symlink(socket, standard)); err != nil {
		r.t.Fatal(err)
	}
	return ""
}

// TestNomadLogsNoKeyOfOurOwn is the control of the two tests above.
func TestNomadLogsNoKeyOfOurOwn(t *testing.T) {
	start(t, options{plugin: "pids_limit = 99\n volumes {\n enabled = true\n }"}, func(r *rig) {
		if lines := r.logLines(noEffect); len(lines) > 0 {
			t.Errorf("no key is without effect, but:\n%s", strings.Join(lines, "\n"))
		}
		if lines := r.logLines("starting plugin"); len(lines) == 0 {
			t.Error("the log has no lines of plugins: the assertion above proves nothing")
		}
	})
}

// TestEventsGoToTheDriverThatStartedTheTask has two plugin blocks on one agent, and tasks of both: each
// task has each event once, and Nomad gets no event that it has no handler for.
func TestEventsGoToTheDriverThatStartedTheTask(t *testing.T) {
	start(t, options{second: "docker"}, func(r *rig) {
		r.waitForDriver("docker")
		jobs := []string{"ours", "theirs"}
		for _, name := range jobs {
			body := job(name, "service", "", "", `args = ["-c", "while true; do sleep 0.1; done"]`)
			if name == "theirs" {
				body = strings.Replace(body, `driver = "longshore"`, `driver = "docker"`, 1)
			}
			r.run(body)
		}
		for _, name := range jobs {
			a := r.allocation(name, "running")
			r.must("job", "stop", "-detach", name)
			r.eventually(name+" has ended, and its events say so", func() bool {
				a = r.look(a)
				return a.ClientStatus == "complete" && a.event("main", "Killed").Type != ""
			})
			times := map[string]int{}
			for _, e := range a.TaskStates["main"].Events {
				times[fmt.Sprint(e.Type, ": ", e.DisplayMessage, " ", e.Details)]++
			}
			for event, n := range times {
				if n > 1 {
					t.Errorf("%s has an event %d times: %s", name, n, event)
				}
			}
			if n := strings.Count(a.said("main"), "Driver: Container started"); n != 1 {
				t.Errorf("%s was started %d times according to its events:\n%s", name, n, a.said("main"))
			}
		}
		if lines := r.logLines("no handler registered"); len(lines) > 0 {
			t.Errorf("Nomad got events of tasks that the driver did not start:\n%s", strings.Join(lines, "\n"))
		}
		r.purge(jobs...)
		r.must("system", "gc")
		r.nothingLeft()
	})
}

// logLines returns the lines of Nomad's log that contain a text.
func (r *rig) logLines(text string) (lines []string) {
	r.t.Helper()
	b, err := os.ReadFile(r.log.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}
