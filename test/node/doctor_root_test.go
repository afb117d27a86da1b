package node

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
	"github.com/longshore/longshore/test/nodetest"
)

type finding struct{ Name, Status, Detail, Hint string }

// found returns a finding of a command, "" for none.
func found(n *nodetest.Node, name string, args ...string) finding {
	out, _ := n.CLI(append(args, "--json")...) // its status is 1 where something fails
	var list []finding
	if json.Unmarshal([]byte(out), &list) != nil {
		dec := json.NewDecoder(strings.NewReader(out))
		for dec.More() {
			var f finding
			if dec.Decode(&f) != nil {
				break
			}
			list = append(list, f)
		}
	}
	for _, f := range list {
		if f.Name == name {
			return f
		}
	}
	return finding{}
}

// TestDoctorSeesAFullDisk in bytes and in inodes, of root and state; so do check and doctor --offline.
func TestDoctorSeesAFullDisk(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "longshore-node-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		for _, name := range []string{"root", "run"} {
			at := filepath.Join(dir, name)
			if err := os.Mkdir(at, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=96m,nr_inodes=8k,mode=700"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		}
		n := nodetest.Start(t, nodetest.Options{Dir: dir})
		for _, disk := range []struct{ finding, dir string }{{"disk root", "root"}, {"disk state", "run"}} {
			if f := found(n, disk.finding, "doctor"); f.Status != "ok" {
				t.Errorf("at first: %+v", f)
			}
			filler := filepath.Join(dir, disk.dir, "filler")
			for _, c := range []struct {
				what string
				fill func() error
			}{
				{"no byte", func() error { return fillBytes(filler) }},
				{"no inode", func() error { return fillInodes(filler) }},
			} {
				if err := c.fill(); err != nil {
					t.Fatal(err)
				}
				for _, command := range [][]string{{"doctor"}, {"doctor", "--offline", "--root", n.Root, "--state", n.State}, {"check"}} {
					if f := found(n, disk.finding, command...); f.Status != "fail" || !strings.Contains(f.Detail, c.what) || f.Hint == "" {
						t.Errorf("%v with %s in %s: %+v", command, c.what, disk.dir, f)
					}
				}
				if err := os.RemoveAll(filler); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestAFailedStartSaysWhatTheMachineLacks: an agent without an installed keeper, on a full root, prints both
// findings with their hints, and none that is in order.
func TestAFailedStartSaysWhatTheMachineLacks(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		program, err := os.ReadFile(filepath.Join(nodetest.Bin(t), "longshore"))
		if err != nil {
			t.Fatal(err)
		}
		root := filepath.Join(dir, "root")
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "longshore"), program, 0o700), os.WriteFile(filepath.Join(dir, "config.toml"), nil, 0o600), os.Mkdir(root, 0o700), unix.Mount("tmpfs", root, "tmpfs", 0, "size=16m,mode=700")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
		start := func() string {
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "longshore"), "agent", "--config", filepath.Join(dir, "config.toml"), "--root", root, "--state", filepath.Join(dir, "run"))
			cmd.Env = []string{"PATH=" + dir}
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("it starts without a keeper: %s", out)
			}
			return string(out)
		}
		const keeper, full = "install the program longshore-keeper of the same version beside longshore", "root is full: no byte is left"
		if out := start(); !strings.Contains(out, keeper) || strings.Contains(out, full) || strings.Contains(out, "readable: the victim") {
			t.Errorf("without a keeper: %s", out)
		}
		if err := fillBytes(filepath.Join(root, "filler")); err != nil {
			t.Fatal(err)
		}
		if out := start(); !strings.Contains(out, keeper) || !strings.Contains(out, full) || !strings.Contains(out, "system prune") {
			t.Errorf("without a keeper, on a full root: %s", out)
		}
	})
}

func fillBytes(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	block := make([]byte, 1<<20)
	for {
		if _, err := f.Write(block); err != nil {
			if len(block) == 1 {
				return nil
			}
			block = block[:len(block)/2]
		}
	}
}

func fillInodes(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for i := 0; ; i++ {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if errors.Is(err, unix.ENOSPC) {
			return nil
		}
		if err != nil {
			return err
		}
		_ = f.Close()
	}
}

// TestTheAgentMendsTheHostsNetwork: it undoes another program's changes within seconds, and doctor, an event and the
// metric tell of it. A setting of a user's own stays, and doctor and check tell of it.
func TestTheAgentMendsTheHostsNetwork(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		const metrics = "127.0.0.1:17946" // of this test's namespace
		ca := tlsconftest.New(t)
		n := nodetest.Start(t, nodetest.Options{Config: metricsConfig(t, ca, metrics)})
		image := n.Busybox(t)
		pod := n.RunPod(t, n.PodConfig("web"))
		pod.Run(t, nodetest.ContainerConfig("web", image, "sleep", "1000"))
		for _, c := range []struct{ line, text string }{
			{"ip link del longshore0", "bridge longshore0 was deleted"},
			{"sysctl -qw net.ipv4.ip_forward=0", "net/ipv4/ip_forward is 0 instead of 1"},
		} {
			words := strings.Fields(c.line)
			if out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", c.line, err, out)
			}
			roottest.Eventually(t, "an event tells of "+c.text, func() bool {
				out, err := n.CLI("events", "--since", "0", "--no-follow")
				return err == nil && strings.Contains(out, c.text)
			})
			if f := found(n, "network", "doctor"); f.Status != "warn" || !strings.Contains(f.Detail, c.text) {
				t.Errorf("doctor after %s: %+v", c.line, f)
			}
		}
		master, err := exec.CommandContext(t.Context(), "ip", "-o", "link", "show", "master", "longshore0").Output()
		forward, e := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
		if err != nil || e != nil || len(master) == 0 || string(forward) != "1\n" {
			t.Errorf("ports %q, %v; ip_forward %q, %v", master, err, forward, e)
		}
		const own = "/proc/sys/net/ipv4/conf/longshore0/forwarding"
		if err := os.WriteFile(own, []byte("0"), 0o600); err != nil {
			t.Fatal(err)
		}
		roottest.Eventually(t, "doctor tells of a user's own setting", func() bool {
			f := found(n, "network", "doctor")
			return f.Status == "warn" && strings.Contains(f.Detail, "longshore0/forwarding is 0") && f.Hint != ""
		})
		if value, err := os.ReadFile(own); err != nil || string(value) != "0\n" {
			t.Errorf("a user's own setting is %q, %v", value, err)
		}
		if f := found(n, "network", "check"); f.Status != "fail" || !strings.Contains(f.Detail, "longshore0/forwarding is 0") {
			t.Errorf("check: %+v", f)
		}
		roottest.Eventually(t, "the metric tells of it", func() bool {
			return strings.Contains(scrape(t, ca, "https://"+metrics+"/metrics", "s3cret"), `longshore_findings{name="network",status="warn"} 1`)
		})
		if err := os.WriteFile(own, []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
}

// metricsConfig is the section of a config for metrics at an address, with the token "s3cret".
func metricsConfig(t *testing.T, ca *tlsconftest.Authority, listen string) string {
	t.Helper()
	cert, key := ca.Issue("longshore")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("[metrics]\nlisten = %q\ncert = %q\nkey = %q\ntoken_file = %q\n", listen, cert, key, token)
}

// scrape returns the metrics, "" when there is no answer.
func scrape(t *testing.T, ca *tlsconftest.Authority, url, token string) string {
	t.Helper()
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(req)
	if err != nil {
		t.Logf("scrape: %v", err)
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(text)
}
