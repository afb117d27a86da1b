package nomad

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// look prints a task's surroundings, the same with each driver.
const look = `
id -u
pwd
hostname
echo "arguments: $0 $*"
echo "pid is 1: $(test $$ = 1 && echo yes || echo no)"
env | grep -v "^HOSTNAME=" | sort
grep -E "^(Cap|NoNewPrivs)" /proc/self/status
grep -E "open files|processes|core file" /proc/self/limits
cat /proc/self/oom_score_adj
cat /proc/sys/net/core/somaxconn
for d in / /bin /alloc /local /secrets /proc/kcore /proc/sys /sys; do
  (touch $d/probe 2>/dev/null || : > $d) 2>/dev/null && echo "$d can be written" || echo "$d cannot"
done
ls /sys/class/net | sort
cat /proc/1/cgroup | wc -l | tr 0-9 n
`

// lookMore prints the additions of docker's driver.
const lookMore = `
id
env | grep HOSTNAME
grep -E "^(Seccomp:|Groups)" /proc/self/status
for f in /etc/hosts /etc/resolv.conf; do grep -v "^#" $f | tr "\t" " " | grep -v "^$" | sort -k 2; done
for d in /dev/shm /data /scratch; do df -k $d | tail -1 | tr -s " " | cut -d " " -f 2,6; done
for d in /alloc/logs /conf /data /named /dev/void; do
  (touch $d/probe 2>/dev/null || : > $d) 2>/dev/null && echo "$d can be written" || echo "$d cannot"
done
ls -l /dev | grep -E "null|void|full|tty$" | tr -s " " | cut -d " " -f 1,3-6,10-
cat /conf
ls /named
ip addr show eth0 | grep -c "inet "
`

// lookEnd keeps a task running until its output was read.
const lookEnd = `
echo "to stderr" >&2
echo "that is all"
until test -e /alloc/data/go; do sleep 0.1; done
`

// forDocker returns jobs in the words of docker's driver, by their subjects.
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
	files := template("local/look", look+lookMore+lookEnd) + template("local/text", "from a template")
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

// template is a block that writes a file of the task's.
func template(name, data string) string {
	return fmt.Sprintf("template {\n destination = %q\n left_delimiter = \"<<\"\n data = <<EOF\n%s\nEOF\n}\n", name, data)
}

// forExec are jobs in the words of exec's driver.
func forExec() map[string]string {
	files := template("local/look", "#!/bin/sh\n"+look+lookEnd)
	jobs := map[string]string{
		"plain":  job("plain", "batch", once, files, `args = ["/local/look", "a b", "${NOMAD_TASK_NAME}"]`),
		"user":   job("user", "batch", once, files+`user = "www-data"`, `args = ["/local/look"]`),
		"caps":   job("caps", "batch", once, files, "args = [\"/local/look\"]\n cap_drop = [\"CHOWN\"]\n work_dir = \"/local\""),
		"found":  strings.Replace(job("found", "batch", once, files, ""), "/bin/sh", "look", 1),
		"status": job("status", "batch", once, "", `args = ["-c", "exit 7"]`),
		"killed": job("killed", "batch", once, "", `args = ["-c", "kill -9 $$"]`),
		"absent": strings.Replace(job("absent", "batch", once, "", ""), "/bin/sh", "/bin/absent", 1),
		"nobody": job("nobody", "batch", once, `user = "nobody-here"`, `args = ["-c", "true"]`),
		"typo":   job("typo", "batch", once, "", `colour = "blue"`),
	}
	for name, text := range jobs {
		jobs[name] = strings.NewReplacer(`driver = "longshore"`, `driver = "exec"`, "image   = \"IMAGE\"\n", "").Replace(text)
	}
	return jobs
}

// outcome returns a job's end and output, without the parts that differ in each allocation.
func (r *rig) outcome(name, body string) string {
	r.t.Helper()
	var a alloc
	var said string
	// Docker's driver may lose output shortly before a task's end.
	if strings.Contains(body, "local/look") {
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
		{`(?m)^(HOSTNAME=|\S+ )?[0-9a-f]{12}$`, "${1}OWN NAME"}, // the container's id
		{`(?m)^127\.0\.1\.1 .*\n`, ""},                          // without a network a task of ours knows its name too
		{`\b172\.\d+\.\d+\.\d+\b|\b10\.\d+\.\d+\.\d+\b`, "ADDRESS"},
	} {
		out = regexp.MustCompile(x[0]).ReplaceAllString(out, x[1])
	}
	return out
}

// TestJobsForDockerAreAlike: jobs by our driver, announced as docker, and by Nomad's own with a
// dockerd have the same surroundings and the same end.
func TestJobsForDockerAreAlike(t *testing.T) {
	if os.Getenv("DOCKERD") == "" {
		t.Skip("needs docker: set DOCKERD to its daemon")
	}
	o := options{name: "docker", docker: true, plugin: "volumes {\n enabled = true\n}\n allow_caps = [\"all\"]"}
	start(t, o, func(r *rig) { r.alike(o, forDocker()) })
}

// TestJobsForExecAreAlike is the same of Nomad's exec driver, of one that was built
// with cgo.
func TestJobsForExecAreAlike(t *testing.T) {
	root := t.TempDir()
	o := options{name: "exec", client: fmt.Sprintf("chroot_env = { %q = \"/\" }", root)}
	start(t, o, func(r *rig) {
		fill(t, root)
		r.alike(o, forExec())
	})
}

// fill makes a small system.
func fill(t *testing.T, root string) {
	t.Helper()
	for _, dir := range []string{"bin", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "cp", "/bin/busybox", root+"/bin/busybox").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	applets, err := exec.CommandContext(t.Context(), "/bin/busybox", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range strings.Fields(string(applets)) {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", a)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"passwd": "root:x:0:0::/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n", "group": "root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\n"} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// alike runs jobs by our driver, and then by Nomad's own of the same name.
func (r *rig) alike(o options, jobs map[string]string) {
	r.t.Helper()
	seen := map[bool]map[string]string{}
	for _, ours := range []bool{true, false} {
		if !ours {
			r.stopNomad()
			o.bare = true
			r.configure(o)
			r.startNomad()
			var is node
			r.eventually("Nomad has looked for its driver", func() bool {
				is = r.node()
				return is.Drivers[o.name].Healthy || is.Drivers["mock_driver"].Healthy
			})
			if !is.Drivers[o.name].Healthy || is.Attributes["driver."+o.name+".runtime"] != "" {
				r.t.Skipf("this Nomad has no %s of its own", o.name)
			}
		}
		seen[ours] = map[string]string{}
		for _, name := range slices.Sorted(maps.Keys(jobs)) {
			r.run(jobs[name])
			seen[ours][name] = r.outcome(name, jobs[name])
			r.purge(name)
		}
		r.nothingLeft()
	}
	for name, want := range seen[false] {
		if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(seen[true][name], "\n")); diff != "" {
			r.t.Errorf("%s is not alike (-Nomad's +ours):\n%s", name, diff)
		}
	}
}
