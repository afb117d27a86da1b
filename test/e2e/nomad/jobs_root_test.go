package nomad

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// job is a job with one group of one task.
func job(name, kind, group, task, config string) string {
	return `
job "` + name + `" {
  type = "` + kind + `"
  group "g" {
    ` + group + `
    task "main" {
      driver = "longshore"
      config {
        image   = "IMAGE"
        command = "/bin/sh"
        ` + config + `
      }
      resources {
        cpu    = 100
        memory = 32
      }
      ` + task + `
    }
  }
}`
}

// more is one more task of a group.
func more(name, config string) string {
	return `
    task "` + name + `" {
      driver = "longshore"
      config {
        image   = "IMAGE"
        command = "/bin/sh"
        ` + config + `
      }
      resources {
        cpu    = 100
        memory = 32
      }
    }`
}

const once = `
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }`

// logged returns the log of the task main once it has want in it.
func (r *rig) logged(a alloc, want string, more ...string) string {
	r.t.Helper()
	return r.loggedBy(a, "main", want, more...)
}

// loggedBy returns a task's log once it has want in it.
func (r *rig) loggedBy(a alloc, task, want string, more ...string) string {
	r.t.Helper()
	var out string
	args := append([]string{"alloc", "logs"}, append(more, a.ID, task)...)
	r.eventually("the log of "+a.JobID+" says "+want, func() bool {
		out, _ = r.nomad(args...)
		return strings.Contains(out, want)
	})
	return out
}

// purge stops a job and has Nomad forget it.
func (r *rig) purge(jobs ...string) {
	r.t.Helper()
	for _, j := range jobs {
		r.must("job", "stop", "-purge", "-detach", j)
	}
}

// TestJobsOfEveryKind: tasks end by themselves, badly, for want of memory, or by Nomad, and Nomad
// shows how.
func TestJobsOfEveryKind(t *testing.T) {
	start(t, options{}, func(r *rig) {
		r.run(job("batch", "batch", once, "", `args = ["-c", "echo done to stdout; echo done to stderr >&2"]`))
		r.run(job("sysbatch", "sysbatch", "", "", `args = ["-c", "exit 0"]`))
		r.run(job("fails", "batch", once, "", `args = ["-c", "exit 7"]`))
		r.run(job("oom", "batch", once, "", `args = ["-c", "exec tail /dev/zero"]`))
		r.run(job("asks", "batch", once, `user = "nobody-here"`, `args = ["-c", "true"]`))
		r.run(job("typo", "batch", once, "", `colour = "blue"`))
		r.run(job("again", "batch", `
    restart {
      attempts = 1
      delay    = "0s"
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }`, "", `args = ["-c", "test -e /alloc/data/second && exit 0; touch /alloc/data/second; exit 1"]`))
		r.run(strings.Replace(job("cron", "batch", "", "", `args = ["-c", "true"]`), `  group "g"`, "  periodic {\n    crons = [\"* * * * * * *\"]\n  }\n  group \"g\"", 1))

		a := r.allocation("batch", "complete")
		r.logged(a, "done to stdout")
		r.logged(a, "done to stderr", "-stderr")
		r.allocation("sysbatch", "complete")
		if a := r.allocation("fails", "failed"); !strings.Contains(a.said("main"), "Exit Code: 7") || !strings.Contains(a.said("main"), "exit_status:7") {
			t.Errorf("fails:\n%s", a.said("main"))
		}
		if a := r.allocation("oom", "failed"); !strings.Contains(a.said("main"), "OOM Killed") && !strings.Contains(a.said("main"), "oom_killed:true") || !strings.Contains(a.said("main"), "oom:true") {
			t.Errorf("oom:\n%s", a.said("main"))
		} else {
			t.Logf("oom:\n%s", a.said("main"))
		}
		if a := r.allocation("asks", "failed"); !strings.Contains(a.said("main"), "nobody-here") || !strings.Contains(a.said("main"), "Driver Failure") {
			t.Errorf("asks:\n%s", a.said("main"))
		}
		if a := r.allocation("typo", "failed"); !strings.Contains(a.said("main"), "Failed Validation") {
			t.Errorf("typo:\n%s", a.said("main"))
		}
		if a := r.allocation("again", "complete"); !strings.Contains(a.said("main"), "Restarting") {
			t.Errorf("again:\n%s", a.said("main"))
		}
		r.eventually("the periodic job has run", func() bool {
			var list []struct{ ID, Status string }
			r.get("/v1/jobs?prefix=cron/periodic", &list)
			for _, j := range list {
				for _, a := range r.allocs(strings.ReplaceAll(j.ID, "/", "%2F")) {
					if a.ClientStatus == "complete" {
						return true
					}
				}
			}
			return false
		})
		r.purge("batch", "sysbatch", "fails", "oom", "asks", "typo", "again", "cron")
		r.must("system", "gc")
		r.nothingLeft()
	})
}

// TestATaskGetsWhatItsJobSays looks from inside.
func TestATaskGetsWhatItsJobSays(t *testing.T) {
	host := t.TempDir()
	start(t, options{client: `
  host_volume "shared" {
    path = "` + host + `"
  }
  meta { colour = "blue" }`, plugin: "volumes {\n enabled = true\n}"}, func(r *rig) {
		if err := os.MkdirAll(host, 0o777); err != nil {
			t.Fatal(err)
		}
		service := `
      user         = "33:44"
      kill_signal  = "SIGUSR2"
      kill_timeout = "30s"
      template {
        data        = "colour={{ env \"meta.colour\" }}\n"
        destination = "local/conf"
      }
      volume_mount {
        volume      = "shared"
        destination = "/shared"
      }
      env { WHO = "${node.unique.name}" }`
		group := `
    volume "shared" {
      type   = "host"
      source = "shared"
    }`
		body := strings.ReplaceAll(job("inside", "service", group, service, `
        args         = ["-c", "trap 'echo told by USR2; exit 0' USR2; id -u; id -g; cat /local/conf; echo shm $(df /dev/shm | tail -1); head -1 /proc/self/limits; grep Cpus_allowed_list /proc/self/status; echo host=$(hostname); echo on $WHO; touch /shared/was-here; (touch /alloc/logs/x 2>&1); cat /proc/self/oom_score_adj; echo ready; while true; do sleep 0.1; done"]
        hostname     = "box"
        shm_size     = 1048576
        oom_score_adj = 100
        extra_hosts  = ["db:192.0.2.7"]
        tmpfs        = ["/scratch:size=64k"]
        sysctl       = { "kernel.shmmni" = "100" }
        ulimit       = { nofile = "333:444" }
        network_mode = "none"`), "memory = 32", "memory = 32\n        memory_max = 64")
		body = strings.Replace(body, "cpu    = 100", "cores  = 1", 1)
		if err := os.Chmod(host, 0o777); err != nil {
			t.Fatal(err)
		}
		r.run(body)
		a := r.allocation("inside", "running")
		out := r.logged(a, "ready")
		for _, want := range []string{"33\n44\n", "colour=blue", " 1024 ", "host=box", "Read-only file system", "100\nready"} {
			if !strings.Contains(out, want) {
				t.Errorf("the task does not see %q:\n%s", want, out)
			}
		}
		if _, err := os.Stat(filepath.Join(host, "was-here")); err != nil {
			t.Errorf("the host volume: %v", err)
		}
		inside := func(command string) string {
			t.Helper()
			out, err := r.nomad("alloc", "exec", "-i=false", "-t=false", a.ID, "/bin/sh", "-c", command)
			if err != nil {
				t.Errorf("%s: %v", command, err)
			}
			return out
		}
		for command, want := range map[string]string{
			"cat /etc/hosts":                      "192.0.2.7",
			"df /scratch | tail -1":               " 64 ",
			"cat /proc/sys/kernel/shmmni":         "100",
			"grep 'open files' /proc/self/limits": "333",
			"ip link":                             "lo",
			"id -u":                               "33",
		} {
			if got := inside(command); !strings.Contains(got, want) {
				t.Errorf("%s: %q, want %q", command, got, want)
			}
		}
		if got := inside("ip link"); strings.Contains(got, "eth0") || strings.Contains(got, "longshore") {
			t.Errorf("with network_mode none: %s", got)
		}
		cgroup := inside("cat /proc/self/cgroup")
		if !strings.Contains(cgroup, ":freezer:/nomad/"+a.ID+".main") && !strings.Contains(cgroup, ".scope") {
			t.Errorf("it is not in Nomad's cgroup:\n%s", cgroup)
		}
		if got, err := os.ReadFile("/sys/fs/cgroup/memory/nomad/" + a.ID + ".main/memory.limit_in_bytes"); err == nil && string(got) != "67108864\n" {
			t.Errorf("memory limit %s", got)
		}
		if got, err := os.ReadFile("/sys/fs/cgroup/memory/nomad/" + a.ID + ".main/memory.soft_limit_in_bytes"); err == nil && string(got) != "33554432\n" {
			t.Errorf("soft memory limit %s", got)
		}
		r.must("job", "stop", "-detach", "inside")
		r.allocation("inside", "complete")
		r.logged(a, "told by USR2")
		r.purge("inside")
		r.nothingLeft()
	})
}
