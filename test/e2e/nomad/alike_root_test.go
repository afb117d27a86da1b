package nomad

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// look is what a task says of all that its job has asked for.
const look = `
id
pwd
hostname
echo "arguments: $0 $*"
echo "pid is 1: $(test $$ = 1 && echo yes || echo no)"
env | sort
grep -E "^(Cap|NoNewPrivs|Seccomp:|Groups)" /proc/self/status
grep -E "open files|processes|core file" /proc/self/limits
cat /proc/self/oom_score_adj
cat /proc/sys/net/core/somaxconn
for f in /etc/hosts /etc/resolv.conf; do grep -v "^#" $f | tr "\t" " " | grep -v "^$" | sort -k 2; done
for d in /dev/shm /data /scratch; do df -k $d | tail -1 | tr -s " " | cut -d " " -f 2,6; done
for d in / /alloc /alloc/logs /local /secrets /conf /data /named /proc/kcore /proc/sys /sys /dev/void; do
  (touch $d/probe 2>/dev/null || : > $d 2>/dev/null) && echo "$d can be written" || echo "$d cannot"
done
ls -l /dev | grep -E "null|void|full|tty$" | tr -s " " | cut -d " " -f 1,3-6,10-
cat /conf
ls /named
ls /sys/class/net | sort
ip addr show eth0 | grep -c "inet "
cat /proc/1/cgroup | wc -l | tr 0-9 n
cat memory.limit 2>/dev/null
echo "to stderr" >&2
echo "that is all"
until test -e /alloc/data/go; do sleep 0.1; done
`

// forDocker are jobs in the words of docker's driver, by what of them is looked at.
func forDocker() map[string]string {
	const whole = `
        hostname    = "box"
        work_dir    = "/data"
        entrypoint  = ["/bin/sh", "/local/look"]
        args        = ["a b", "$HOME", "${NOMAD_TASK_NAME}"]
        ports       = ["http"]
        labels {
          team = "platform"
        }
        cap_drop    = ["CHOWN"]
        cap_add     = ["SYS_TIME"]
        ulimit {
          nofile = "333:444"
          core   = "0"
        }
        sysctl = [{ "net.core.somaxconn" = "100" }]
        shm_size    = 1048576
        oom_score_adj = 100
        pids_limit  = 50
        extra_hosts = ["db:192.0.2.7"]
        dns_servers = ["192.0.2.8"]
        dns_search_domains = ["example.com"]
        dns_options = ["ndots:2"]
        group_add   = ["55"]
        security_opt = ["no-new-privileges"]
        volumes     = ["local/text:/conf:ro"]
        mount {
          type   = "tmpfs"
          target = "/data"
          tmpfs_options {
            size = 65536
          }
        }
        mount {
          type   = "tmpfs"
          target = "/scratch"
        }
        mount {
          type   = "volume"
          target = "/named"
          source = "alike"
        }
        devices {
          host_path          = "/dev/null"
          container_path     = "/dev/void"
          cgroup_permissions = "r"
        }`
	template := func(name, data string) string {
		return fmt.Sprintf("template {\n destination = %q\n left_delimiter = \"<<\"\n data = <<EOF\n%s\nEOF\n}\n", name, data)
	}
	files := template("local/look", look) + template("local/text", "from a template")
	group := once + `
    network {
      port "http" { to = 8080 }
    }`
	jobs := map[string]string{
		"whole":  job("whole", "batch", group, files, whole),
		"plain":  job("plain", "batch", once, files, "args = [\"/local/look\"]\n hostname = \"box\""),
		"user":   job("user", "batch", once, files+`user = "33:44"`, "args = [\"/local/look\"]\n hostname = \"box\""),
		"closed": job("closed", "batch", once, files, "args = [\"/local/look\"]\n readonly_rootfs = true\n init = true\n network_mode = \"none\"\n cap_drop = [\"ALL\"]"),
		"host":   job("host", "batch", once, files, "args = [\"/local/look\"]\n network_mode = \"host\""),
		"status": job("status", "batch", once, "", `args = ["-c", "exit 7"]`),
		"killed": job("killed", "batch", once, "", `args = ["-c", "kill -9 $$"]`),
		"absent": strings.Replace(job("absent", "batch", once, "", ""), "/bin/sh", "/bin/absent", 1),
		"nobody": job("nobody", "batch", once, `user = "nobody-here"`, `args = ["-c", "true"]`),
		"typo":   job("typo", "batch", once, "", `colour = "blue"`),
	}
	for name, text := range jobs {
		jobs[name] = strings.ReplaceAll(text, `driver = "longshore"`, `driver = "docker"`)
	}
	return jobs
}

// outcome is how a job has ended and what it has said, without what is another's in
// each allocation.
func (r *rig) outcome(name string) string {
	r.t.Helper()
	var a alloc
	var said string
	// What a task says shortly before its end docker's driver may lose.
	if strings.Contains(forDocker()[name], "local/look") {
		a = r.allocation(name, "running")
		said = "to stderr: " + r.logged(a, "to stderr", "-stderr") + r.logged(a, "that is all")
		if err := os.WriteFile(filepath.Join(r.dir, "data", "alloc", a.ID, "alloc", "data", "go"), nil, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	r.eventually(name+" has ended", func() bool {
		return slices.ContainsFunc(r.allocs(name), func(x alloc) bool {
			a = x
			return x.ClientStatus == "complete" || x.ClientStatus == "failed"
		})
	})
	ended := a.event("main", "Terminated")
	out := fmt.Sprintf("%s, exit code %d, signal %q, started %d\n", a.ClientStatus, ended.ExitCode, ended.Details["signal"], a.started("main"))
	for _, kind := range []string{"Driver Failure", "Failed Validation"} {
		if e := a.event("main", kind); e.Type != "" {
			out += "has the event " + kind + "\n"
			r.t.Logf("%s: %v", name, e.Details)
		}
	}
	out = strings.ReplaceAll(out+said, a.ID, "ALLOC")
	for _, x := range [][2]string{
		{`(?m)^((NOMAD_[A-Z_]*(PORT|ADDR|IP)_http|NOMAD_PARENT_CGROUP)=).*$`, "${1}X"},
		{`(?m)^(NOMAD_SHORT_ALLOC_ID=).*$`, "${1}X"},
		{`(?m)^(HOSTNAME=|\S+ )?([0-9a-f]{12}|main)$`, "${1}OWN NAME"}, // docker's is the container's id
		{`(?m)^127\.0\.1\.1 .*\n`, ""},                                 // without a network a task of ours knows its name too
		{`\b172\.\d+\.\d+\.\d+\b|\b10\.\d+\.\d+\.\d+\b`, "ADDRESS"},
	} {
		out = regexp.MustCompile(x[0]).ReplaceAllString(out, x[1])
	}
	return out
}

// TestJobsForDockerAreAlike runs jobs by our driver, announced as docker, and by
// Nomad's own with a dockerd: a task is given the same and ends the same.
func TestJobsForDockerAreAlike(t *testing.T) {
	if os.Getenv("DOCKERD") == "" {
		t.Skip("needs docker: set DOCKERD to its daemon")
	}
	o := options{name: "docker", docker: true, plugin: "volumes {\n enabled = true\n}\n allow_caps = [\"all\"]"}
	start(t, o, func(r *rig) {
		seen := map[bool]map[string]string{}
		for _, ours := range []bool{true, false} {
			if !ours {
				r.stopNomad()
				o.bare = true
				r.configure(o)
				r.startNomad()
				r.eventually("docker's own driver is healthy", func() bool { return r.node().Drivers["docker"].Healthy })
				if v := r.node().Attributes["driver.docker.version"]; v == "" {
					t.Fatal("it is not docker's own driver")
				}
			}
			seen[ours] = map[string]string{}
			for name, body := range forDocker() {
				r.run(body)
				seen[ours][name] = r.outcome(name)
				r.purge(name)
			}
			r.nothingLeft()
		}
		for name, want := range seen[false] {
			if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(seen[true][name], "\n")); diff != "" {
				t.Errorf("%s is not alike (-docker +ours):\n%s", name, diff)
			}
		}
	})
}
