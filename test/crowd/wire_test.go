package crowd

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzMessages takes any node's messages. A decoded event or synchronization, encoded again, decodes to
// the same.
func FuzzMessages(f *testing.F) {
	e := event{kind: eventJoin, time: 7, node: "a", network: "n", table: "overlay_peer_table", key: "k", value: []byte("v"), residualTime: 1}
	on := event{kind: eventLeave, time: 8, node: "a", network: "n"}
	f.Add(e.encode())
	f.Add(compound([][]byte{e.encode(), on.encode()}))
	f.Add(bulkSync{time: 9, unsolicited: true, node: "a", networks: []string{"n", "o"}, payload: compound([][]byte{e.encode()})}.encode())
	f.Add(encodePushPull(9, "a", []event{on}))
	f.Fuzz(func(t *testing.T, b []byte) {
		typ, body, err := open(b)
		if err != nil {
			return
		}
		switch typ {
		case typeCompound:
			_, _ = parts(body)
		case typePushPull:
			_, _ = decodePushPull(body)
		case typeBulkSync:
			again(t, body, decodeBulkSync, bulkSync.encode)
		case typeNetwork, typeTable:
			again(t, body, decodeEvent, event.encode)
		}
	})
}

// again decodes a message, and then its encoding.
func again[M any](t *testing.T, body []byte, decode func([]byte) (M, error), encode func(M) []byte) {
	t.Helper()
	m, err := decode(body)
	if err != nil {
		return
	}
	_, second, err := open(encode(m))
	if err != nil {
		t.Fatal(err)
	}
	other, err := decode(second)
	if string(encode(other)) != string(encode(m)) || err != nil {
		t.Errorf("decoded again: %v, %s", err, cmp.Diff(string(encode(m)), string(encode(other))))
	}
}
