package nomad

import (
	"fmt"
	"strings"
	"testing"
)

// TestAGroupHasAHostname: the driver makes the group's network, Nomad adds its bridge, and every
// task of the group has its host name.
func TestAGroupHasAHostname(t *testing.T) {
	start(t, options{plugin: "create_network = true"}, func(r *rig) {
		if r.node().Attributes["plugins.cni.version.bridge"] == "" {
			t.Skip("this Nomad finds no CNI plugins, which it puts its bridge in place with")
		}
		if v := r.node().Attributes["nomad.version"]; strings.HasPrefix(v, "1.") {
			t.Skipf("Nomad %s does not tell plugins the group's host name", v)
		}
		command := `args = ["-c", "mkdir -p /www; hostname > /www/index.html; grep group-zero /etc/hosts; ip -o addr show dev eth0; test $NOMAD_TASK_NAME = main && exec httpd -f -p 8080 -h /www; exec sleep 1000"]`
		r.run(job("named", "service", `
    network {
      mode     = "bridge"
      hostname = "group-zero"
      port "http" { to = 8080 }
    }`+more("side", command), `kill_signal = "SIGKILL"`, command))
		a := r.allocation("named", "running")
		if got := fetch(t, r, fmt.Sprintf("http://127.0.0.1:%d/", r.port(a, "http"))); got != "group-zero\n" {
			t.Errorf("through the group's port: %q", got)
		}
		out := r.logged(a, "eth0")
		if name, _, _ := strings.Cut(out, "\n"); !strings.HasSuffix(name, "group-zero") {
			t.Errorf("/etc/hosts says %q", name)
		}
		if out, err := r.nomad("alloc", "exec", "-i=false", "-t=false", "-task", "side", a.ID, "/bin/sh", "-c", "hostname; wget -q -O - http://group-zero:8080/"); err != nil || out != "group-zero\ngroup-zero\n" {
			t.Errorf("the other task says %q, %v", out, err)
		}
		if out, err := r.CLI("sandboxes", "--json"); err != nil || !strings.Contains(out, "network/"+a.ID) {
			t.Errorf("the group's network is not ours: %s, %v", out, err)
		}
		r.purge("named")
		r.nothingLeft()
	})
}
