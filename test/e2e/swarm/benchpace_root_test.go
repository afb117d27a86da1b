package swarm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestBenchOverlayPace prints requests on overlay networks: from a dockerd's task to a task of ours and to one of another dockerd's,
// and back; and on our node by the address of a service beside that of its task, and by a port that the
// whole Swarm publishes beside one of the node alone. Where there is IPVS, also by a service's address and at a published
// port on our node beside a dockerd, of a task on neither. Client and server are the same program, in the tasks' namespaces.
func TestBenchOverlayPace(t *testing.T) {
	f := newFigures(t)
	roottest.Run(t, func(t *testing.T) {
		f.t = t
		const service, port, another = "by a service's address", "published by the Swarm", "published by the node"
		x := newMixed(t, 2, 1)
		x.docker("network", "create", "--driver", "overlay", "net")
		for name, publish := range map[string]string{"prober": "8080:80", "web": "8081:80", "host": "mode=host,published=8082,target=80"} {
			where := map[string]string{"prober": "dockerd0", "web": "ours0", "host": "ours0"}[name]
			x.create(name, x.ref, "--network", "net", "--publish", publish, "--constraint", "node.labels.where=="+where, "--", "sleep", "100000")
		}
		x.create("plain", x.ref, "--network", "net", "--mode", "global", "--constraint", "node.labels.where!=dockerd0", "--", "sleep", "100000")
		run := x.settled(map[string]int{"prober": 1, "web": 1, "host": 1, "plain": 2})
		for _, p := range run {
			listenIn(t, p.ns(), ":80")
		}
		prober, tasks := tasksOf(run, "prober")[0], map[string]placed{}
		for _, p := range tasksOf(run, "plain") {
			tasks[p.node] = p
		}
		at := func(p placed) string { return p.addrs["net"].String() + ":80" }
		ours := tasks["ours0"]
		type way struct {
			name, what string
			from       *networktest.Namespace
			to         string
		}
		vip := prober.vips["net"].String() + ":80"
		ways := []way{
			{"ours0", "to its task", prober.ns(), at(ours)},
			{"dockerd1", "to its task", prober.ns(), at(tasks["dockerd1"])},
			{"ours0", "from its task", ours.ns(), at(prober)},
			{"dockerd1", "from its task", tasks["dockerd1"].ns(), at(prober)},
			{service, "by a task of ours", ours.ns(), vip},
			{"by a task's address", "by a task of ours", ours.ns(), at(prober)},
			{port, "of a task of ours, from elsewhere", shoreNS(), oursAddr(0) + ":8081"},
			{another, "of a task of ours, from elsewhere", shoreNS(), oursAddr(0) + ":8082"},
		}
		if hasIPVS() {
			for node, addr := range map[string]string{"ours0": oursAddr(0), "dockerd1": dockerdAddr(1)} {
				ways = append(ways, way{node, "from its task, by a service's address", tasks[node].ns(), vip}, way{node, "at its port, of a task elsewhere", shoreNS(), addr + ":8080"})
			}
		}
		for _, w := range ways {
			roottest.Eventually(t, w.to+" answers", func() bool {
				return w.from.Try(func() error {
					c, err := (&net.Dialer{Timeout: impatience}).Dial("tcp4", w.to) //nolint:noctx // it has a time-out
					return errors.Join(err, closed(c))
				}) == nil
			})
		}
		for round := range f.rounds {
			for i := range ways {
				w := ways[(i+round)%len(ways)]
				f.add(w.name, "requests/s, each by a connection, "+w.what, connections(t, w.from, w.to))
				f.add(w.name, "microseconds there and back, "+w.what, thereAndBack(t, w.from, w.to))
			}
		}
		f.print("ours0", "dockerd1")
		f.print(service, "by a task's address")
		f.print(port, another)
	})
}

func closed(c net.Conn) error {
	if c == nil {
		return nil
	}
	return c.Close()
}

// The size of a round.
const (
	askers = 4
	second = time.Second
)

// connections is how many requests are answered in a second by a connection each, which several ask at once.
func connections(t *testing.T, ns *networktest.Namespace, to string) float64 {
	t.Helper()
	var all errgroup.Group
	var n atomic.Int64
	began := time.Now()
	for range askers {
		all.Go(func() error {
			return ns.Try(func() error {
				buf := make([]byte, 5)
				for time.Since(began) < second {
					c, err := net.Dial("tcp4", to) //nolint:noctx // the test's time is the limit
					if err != nil {
						return err
					}
					// The end of the connection keeps no port busy.
					if tcp, ok := c.(*net.TCPConn); ok {
						_ = tcp.SetLinger(0)
					}
					_, err = c.Write([]byte("echo\n"))
					if err == nil {
						_, err = io.ReadFull(c, buf)
					}
					if err := errors.Join(err, c.Close()); err != nil {
						return fmt.Errorf("%s: %w", to, err)
					}
					n.Add(1)
				}
				return nil
			})
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	return float64(n.Load()) / time.Since(began).Seconds()
}

// thereAndBack is how long a request takes on a connection that there is, in microseconds.
func thereAndBack(t *testing.T, ns *networktest.Namespace, to string) (took float64) {
	t.Helper()
	const n = 2000
	err := ns.Try(func() error {
		c, err := net.Dial("tcp4", to) //nolint:noctx // the test's time is the limit
		if err != nil {
			return err
		}
		buf := make([]byte, 5)
		began := time.Now()
		for range n {
			if _, err = c.Write([]byte("echo\n")); err == nil {
				_, err = io.ReadFull(c, buf)
			}
			if err != nil {
				return errors.Join(err, c.Close())
			}
		}
		took = float64(time.Since(began).Microseconds()) / n
		return c.Close()
	})
	if err != nil {
		t.Fatalf("%s: %v", to, err)
	}
	return took
}
