package networkdb_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	lib "github.com/moby/moby/v2/daemon/libnetwork/networkdb"
	"github.com/sirupsen/logrus"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/gossiptest"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
)

// secret is the key of the tests' members.
var secret = gossiptest.Key

// said has the library's log.
var said log

// log is a buffer that several goroutines may write to.
type log struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestMain(m *testing.M) {
	logrus.SetLevel(logrus.DebugLevel)
	logrus.SetOutput(&said)
	m.Run()
}

// start starts a member by networkdb. Somebody else may take the port that was free.
func start(t *testing.T, o networkdb.Options) (*networkdb.DB, netip.AddrPort) {
	t.Helper()
	for {
		at := gossiptest.Free(t)
		o.Advertise, o.Bind, o.Port = at.Addr(), at.Addr(), at.Port()
		m, err := networkdb.New(o)
		if err != nil && strings.Contains(err.Error(), "address already in use") {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Leave)
		return m, at
	}
}

func TestContract(t *testing.T) {
	t.Run("networkdb", func(t *testing.T) {
		gossiptest.Contract(t, func(t *testing.T, name string) (gossip.Member, netip.AddrPort) {
			return start(t, networkdb.Options{Name: name, Keys: []gossip.Key{secret}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		})
	})
	text := said.String()
	if !strings.Contains(text, "memberlist nodeID:a") {
		t.Error("the library logs nothing to look at")
	}
	for _, key := range []string{hex.EncodeToString(secret[:4]), fmt.Sprintf("%d %d %d %d ", secret[0], secret[1], secret[2], secret[3])} {
		if strings.Contains(text, key) {
			t.Errorf("the library logs the key: %s", key)
		}
	}
}

// TestWhatOthersSay: a member with the right key that announces nonsense is not believed, and does
// not keep others from being heard.
func TestWhatOthersSay(t *testing.T) {
	var log log
	key := gossip.Key{7} // which the library logs
	m, at := start(t, networkdb.Options{Name: "good", Keys: []gossip.Key{key}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	evil := stranger(t, "evil", key)
	if err := evil.Join([]string{at.String()}); err != nil {
		t.Fatal(err)
	}
	if err := m.Enter(t.Context(), "net"); err != nil {
		t.Fatal(err)
	}
	if err := evil.JoinNetwork("net"); err != nil {
		t.Fatal(err)
	}
	v := gossiptest.NewView(t, "good", m, "net")
	peer, _ := gossiptest.Task(2, "web")
	good := []byte("\n\x0b10.0.1.2/24\x12\x1102:42:0a:00:01:02\x1a\t192.0.2.1")
	create := func(table, key string, value []byte) {
		t.Helper()
		if err := evil.CreateEntry(table, "net", key, value); err != nil {
			t.Fatal(err)
		}
	}
	create("overlay_peer_table", "nonsense", []byte{0xff})
	create("overlay_peer_table", "empty", []byte{})
	create("overlay_peer_table", strings.Repeat("k", 300), good)
	create("another_table", "1", good)
	create("endpoint_table", "name", []byte("\n\x03a\x00b*\x0810.0.1.2"))
	create("overlay_peer_table", "good", good)
	v.Want(map[gossip.ID][]gossip.Record{{Network: "net", Endpoint: "good"}: {peer}})
	if err := evil.UpdateEntry("overlay_peer_table", "net", "good", []byte("rubbish")); err != nil {
		t.Fatal(err)
	}
	v.Want(nil)
	for i := range 100 {
		create("overlay_peer_table", fmt.Sprint("flood", i), []byte("rubbish"))
	}
	create("overlay_peer_table", "last", good)
	v.Want(map[gossip.ID][]gossip.Record{{Network: "net", Endpoint: "last"}: {peer}})
	if n := strings.Count(log.String(), "left out"); n == 0 || n > 32 {
		t.Errorf("%d lines about records that are left out", n)
	}
	if !strings.Contains(log.String(), "endpoint=name") || !strings.Contains(log.String(), "table=endpoint_table") {
		t.Errorf("nothing is said about the name: %s", &log)
	}
}

// stranger is a member that is not ours.
func stranger(t *testing.T, name string, key gossip.Key) *lib.NetworkDB {
	t.Helper()
	for {
		at := gossiptest.Free(t)
		c := lib.DefaultConfig()
		c.NodeID, c.BindAddr, c.AdvertiseAddr, c.BindPort, c.Keys = name, at.Addr().String(), at.Addr().String(), int(at.Port()), [][]byte{key[:]}
		db, err := lib.New(c)
		if err != nil && strings.Contains(err.Error(), "address already in use") {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		return db
	}
}

// TestWithoutTheKey: nodes with different keys do not meet.
func TestWithoutTheKey(t *testing.T) {
	m, at := start(t, networkdb.Options{Name: "good", Keys: []gossip.Key{secret}})
	other, _ := start(t, networkdb.Options{Name: "other", Keys: []gossip.Key{{1}}})
	if err := other.Join(t.Context(), []netip.AddrPort{at}); !errdefs.IsUnavailable(err) {
		t.Errorf("joined by another key: %v", err)
	}
	if len(m.Members()) != 0 || len(other.Members()) != 0 {
		t.Errorf("members %v, %v", m.Members(), other.Members())
	}
	if _, err := networkdb.New(networkdb.Options{Name: "taken", Keys: []gossip.Key{secret}, Advertise: at.Addr(), Bind: at.Addr(), Port: at.Port()}); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a port that is taken: %v", err)
	}
	if _, err := networkdb.New(networkdb.Options{Name: "keyless", Advertise: at.Addr()}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no key: %v", err)
	}
	m.Leave()
	if err := m.Enter(t.Context(), "net"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("entered after goodbye: %v", err)
	}
}
