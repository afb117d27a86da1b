package idle

import "testing"

func TestEstablished(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0000000000000000 100 0 0 10 0
   1: 0200000A:0050 0100000A:B2C4 01 00000000:00000000 02:000A 00000000     0        0 2 2 0000000000000000 20 4 30 10 -1
   2: 0200000A:0050 0100000A:B2C5 06 00000000:00000000 03:0017 00000000     0        0 0 3 0000000000000000
`
	if n := established([]byte(table)); n != 1 {
		t.Errorf("%d established connections, want 1", n)
	}
	if n := established(nil); n != 0 {
		t.Errorf("%d established connections in an empty table", n)
	}
}
