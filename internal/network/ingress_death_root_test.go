package network_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// ingressArg has the test binary open an ingress, publish a port and wait to be killed.
const ingressArg = "ingress-until-killed"

// victim is the input of the process that is killed.
type victim struct {
	StateDir, Dir string
	Subnets       []core.OverlaySubnet
	Ingress       core.Ingress
	Ports         []core.PublishedPort
}

func (v victim) run() error {
	conf := netconf.DefaultConfig()
	conf.Mode = netconf.ModeBuiltin
	n, err := network.New(network.Options{Config: conf, Store: &networktest.KV{}, StateDir: v.StateDir})
	if err != nil {
		return err
	}
	on, err := openOverlay(v.Dir, v.Subnets, 0, slog.Default())
	if err != nil {
		return err
	}
	if err := n.OpenIngress(v.Ingress, on, v.Subnets); err != nil {
		return err
	}
	if _, err := n.PublishAll(v.Ports); err != nil {
		return err
	}
	fmt.Println("published")
	select {}
}

// ingressMain is the main function of that process.
func ingressMain() int {
	var v victim
	err := json.Unmarshal([]byte(os.Args[2]), &v)
	if err == nil {
		err = v.run()
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// TestConnectionsToPublishedPortsSurviveTheAgent: the process that has made all is killed; while
// there is none, and when the next one takes over, connections stay and new ones are served.
func TestConnectionsToPublishedPortsSurviveTheAgent(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		o := newOutside(t)
		m := newMesh(t, r, meshRange)
		m.serve(m.task(12, 1), 12, "tcp", 8080)
		m.know(m.farOn, 2, 0)
		list := []core.PublishedPort{m.port("tcp", 8080, 12)}
		told, err := json.Marshal(victim{r.dir, m.dirs[0], m.subnets, m.ingress(), list})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", ingressArg, string(told))
		cmd.Stderr = t.Output()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "published\n" {
			t.Fatalf("%q, %v", line, err)
		}
		m.cleanup()
		var kept []session
		serves := func(when string) {
			t.Helper()
			for _, from := range []struct {
				ns *networktest.Namespace
				to string
			}{{o.ns, at(o.host4, 8080)}, {nil, "127.0.0.1:8080"}} {
				s, err := dial(t, from.ns, "tcp", from.to)
				if err != nil {
					t.Errorf("%s: %s: %v", when, from.to, err)
					continue
				}
				kept = append(kept, s)
			}
			for _, s := range kept {
				s.echo(t)
			}
		}
		serves("while it runs")
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		serves("when it is dead")
		m.on = m.open(0)
		if err := r.net.Recover(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		serves("when the next one has recovered")
		m.openIngress()
		serves("when it has opened the ingress")
		m.publish(list)
		serves("when it has published")
	})
}
