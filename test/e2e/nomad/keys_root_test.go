package nomad

import (
	"runtime"
	"strings"
	"testing"
)

// TestKeysOfOtherDriversAreNomadsToo: Nomad takes them as docker's and podman's users
// write them, blocks and lists, and the task has them or says why not.
func TestKeysOfOtherDriversAreNomadsToo(t *testing.T) {
	start(t, options{plugin: "extra_labels = [\"job_name\"]\n volumes {\n enabled = true\n }"}, func(r *rig) {
		look := `args = ["-c", "test -c /dev/void && pwd"]
        working_dir = "/tmp"
        logging {
          type = "journald"
          config {
            tag = "x"
          }
        }
        mount {
          type   = "volume"
          source = "kept"
          target = "/kept"
          volume_options {
            labels {
              team = "blue"
            }
          }
        }
        `
		for name, devices := range map[string]string{
			"texts":  `devices = ["/dev/null:/dev/void:r", "/dev/zero"]`,
			"blocks": "devices {\n host_path = \"/dev/null\"\n container_path = \"/dev/void\"\n }\n devices {\n host_path = \"/dev/zero\"\n }",
			"list":   `devices = [{ host_path = "/dev/null", container_path = "/dev/void", cgroup_permissions = "r" }]`,
		} {
			r.run(job(name, "batch", once, "", look+devices))
			a := r.allocation(name, "complete")
			r.logged(a, "/tmp\n")
			if said := a.said("main"); !strings.Contains(said, "journald") {
				t.Errorf("%s: nobody says that the log goes elsewhere:\n%s", name, said)
			}
		}
		r.run(strings.Replace(job("podman", "batch", once, "", `
        entrypoint = "/bin/sh"
        args = ["-c", "df -k /dev/shm | tail -1; touch /data/x && grep -c noexec.*uid=5 /proc/self/mountinfo"]
        shm_size = "1m"
        tmpfs = ["/t:size=64k,noexec,uid=5"]
        volumes = ["/data"]
        memory_reservation = "16m"
        arch = "`+runtime.GOARCH+`"
        selinux_opts = ["type:x"]
        static_ips = []
        auth {
          tls_verify = true
        }`), `command = "/bin/sh"`, "", 1))
		a := r.allocation("podman", "complete")
		if out := r.logged(a, "\n1\n"); !strings.Contains(out, " 1024 ") || !strings.Contains(a.said("main"), "selinux_opts") {
			t.Errorf("podman's job says %q\n%s", out, a.said("main"))
		}
		for name, c := range map[string]struct{ config, want string }{
			"ports":   {"port_map {\n http = 80\n }", "use ports"},
			"mac":     {`mac_address = "02:00:00:00:00:01"`, "use ipv4_address"},
			"aliases": {`network_aliases = ["db"]`, "use a service block"},
			"storage": {"storage_opt {\n size = \"1G\"\n }", "ephemeral_disk"},
		} {
			r.run(job(name, "batch", once, "", `args = ["-c", "true"]`+"\n"+c.config))
			if said := r.allocation(name, "failed").said("main"); !strings.Contains(said, c.want) {
				t.Errorf("%s:\n%s", name, said)
			}
		}
		r.purge("podman", "texts", "blocks", "list", "ports", "mac", "aliases", "storage")
		r.must("system", "gc")
		r.nothingLeft()
	})
}
