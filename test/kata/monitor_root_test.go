package kata

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/test/nodetest"
)

// monitor is QEMU's control of the machine that the test runs on: hack/vm/kata.sh leads
// it to a port of the machine itself.
type monitor struct {
	port *os.File
	in   *bufio.Reader
}

// said is QEMU's message: an answer to a command, or an event.
type said struct {
	Greeting json.RawMessage `json:"QMP"`
	Return   json.RawMessage `json:"return"`
	Error    *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
	Data  struct {
		Device string `json:"device"`
	} `json:"data"`
}

// openMonitor finds the port by its name.
func openMonitor(t *testing.T) *monitor {
	t.Helper()
	var at string
	nodetest.Eventually(t, "the monitor's port is there", func() bool {
		ports, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ports {
			if b, err := os.ReadFile(p); err == nil && strings.TrimSpace(string(b)) == "monitor" {
				at = "/dev/" + filepath.Base(filepath.Dir(p))
			}
		}
		return at != ""
	})
	port, err := os.OpenFile(at, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = port.Close() })
	m := &monitor{port: port, in: bufio.NewReader(port)}
	if got := m.read(t); got.Greeting == nil {
		t.Fatalf("QEMU does not greet: %+v", got)
	}
	m.do(t, "qmp_capabilities", nil)
	return m
}

func (m *monitor) read(t *testing.T) (got said) {
	t.Helper()
	line, err := m.in.ReadBytes('\n')
	if err != nil {
		t.Fatalf("QEMU's monitor: %v", err)
	}
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatalf("QEMU says %q: %v", line, err)
	}
	return got
}

// do has QEMU execute a command, and passes over events.
func (m *monitor) do(t *testing.T, command string, args map[string]any) json.RawMessage {
	t.Helper()
	request := map[string]any{"execute": command}
	if args != nil {
		request["arguments"] = args
	}
	b, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.port.Write(append(b, '\n')); err != nil {
		t.Fatal(err)
	}
	for {
		switch got := m.read(t); {
		case got.Error != nil:
			t.Fatalf("%s: QEMU says: %s", b, got.Error.Desc)
		case got.Return != nil:
			return got.Return
		}
	}
}

// unplug takes a device out, and waits for its removal.
func (m *monitor) unplug(t *testing.T, id string) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"execute": "device_del", "arguments": map[string]any{"id": id}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.port.Write(append(b, '\n')); err != nil {
		t.Fatal(err)
	}
	for {
		switch got := m.read(t); {
		case got.Error != nil:
			t.Fatalf("take %s out: QEMU says: %s", id, got.Error.Desc)
		case got.Event == "DEVICE_DELETED" && got.Data.Device == id:
			return
		}
	}
}
