package vxlan

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
)

// TestIndices: all programs compute an association's index alike. The values are those of another
// implementation of FNV-1a over the addresses and the key's number.
func TestIndices(t *testing.T) {
	for _, c := range []struct {
		src, dst string
		id, want uint32
	}{
		{"192.0.2.1", "192.0.2.2", 1, 0xdb9034c7},
		{"192.0.2.2", "192.0.2.1", 1, 0x059471d7},
		{"192.0.2.1", "192.0.2.2", 0xfffffffe, 0xdd5b7ee3},
		{"10.20.30.40", "203.0.113.255", 258, 0x7983392d},
		{"2001:db8::1", "2001:db8:0:1::2", 77, 0x61c2ffdc},
	} {
		if got := spi(netip.MustParseAddr(c.src), netip.MustParseAddr(c.dst), c.id); got != c.want {
			t.Errorf("from %s to %s by key %d: %#x, want %#x", c.src, c.dst, c.id, got, c.want)
		}
	}
}

// TestAssociations: the kernel gets the same as other nodes' kernels.
func TestAssociations(t *testing.T) {
	key := Key{Key: [16]byte([]byte("0123456789abcdef")), ID: 1}
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	x := newSA(a, b, key).state()
	if got, want := hex.EncodeToString(x.Aead.Key), hex.EncodeToString([]byte("0123456789abcdef"))+"db9034c7"; got != want {
		t.Errorf("key and salt %s, want %s", got, want)
	}
	if x.Aead.Name != "rfc4106(gcm(aes))" || x.Aead.ICVLen != 64 || x.Spi != 0xdb9034c7 || x.Reqid != 0xd0c4e3 || x.ReplayWindow != 0 || x.ESN ||
		x.Proto != netlink.XFRM_PROTO_ESP || x.Mode != netlink.XFRM_MODE_TRANSPORT || x.Src.String() != "192.0.2.1" || x.Dst.String() != "192.0.2.2" {
		t.Errorf("association with index %#x, request id %#x, window %d", x.Spi, x.Reqid, x.ReplayWindow)
	}
	if key.Key != [16]byte([]byte("0123456789abcdef")) {
		t.Error("the key has changed")
	}
	p := policyOut(pair{a, b, 4789}, 0xdb9034c7)
	if p.Src.String() != "192.0.2.1/32" || p.Dst.String() != "192.0.2.2/32" || p.DstPort != 4789 || p.Mark.Value != 0xd0c4e3 || p.Mark.Mask != 0xffffffff ||
		p.Tmpls[0].Spi != 0xdb9034c7 || p.Tmpls[0].Reqid != 0xd0c4e3 || p.Tmpls[0].Optional != 0 || p.Action != netlink.XFRM_POLICY_ALLOW {
		t.Errorf("policy %s", p)
	}
	if !isOurs(*x) {
		t.Error("our association is not ours")
	}
	for name, change := range map[string]func(*netlink.XfrmState){
		"dockerd's": func(x *netlink.XfrmState) {
			x.Selector = &netlink.XfrmPolicy{Src: ipNet(netip.MustParsePrefix("0.0.0.0/0"))}
		},
		"another request's":   func(x *netlink.XfrmState) { x.Reqid = 1 },
		"a tunnel":            func(x *netlink.XfrmState) { x.Mode = netlink.XFRM_MODE_TUNNEL },
		"without a selector":  func(x *netlink.XfrmState) { x.Selector = nil },
		"of another protocol": func(x *netlink.XfrmState) { x.Selector.Proto = 0 },
	} {
		x := newSA(a, b, key).state()
		change(x)
		if isOurs(*x) {
			t.Errorf("%s is ours", name)
		}
	}
}

// TestKeysAreNotTold: neither in logs nor in errors nor in documents.
func TestKeysAreNotTold(t *testing.T) {
	key := Key{Key: [16]byte([]byte("secretsecretsecr")), ID: 7}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("key", "key", key, "keys", []Key{key})
	slog.New(slog.NewJSONHandler(&log, nil)).Info("key", "key", key, "keys", []Key{key})
	doc, err := json.Marshal(map[string]any{"key": key, "keys": []Key{key}})
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(doc)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		all += fmt.Sprintf(verb, key) + fmt.Sprintf(verb, []Key{key}) + fmt.Sprintf(verb, &key)
	}
	for _, part := range []string{"secret", hex.EncodeToString([]byte("secr")), "115 101 99", "0x73, 0x65"} {
		if strings.Contains(all, part) {
			t.Errorf("told: %s", all)
		}
	}
	if !strings.Contains(all, "key 7") {
		t.Errorf("the key's number is missing: %s", all)
	}
}

// TestKeysThatCannotBe: the kernel gets no request.
func TestKeysThatCannotBe(t *testing.T) {
	k, err := NewKeyring(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	for name, keys := range map[string][]Key{"none": nil, "too many": make([]Key, 9), "twice": {{ID: 1}, {ID: 2}, {ID: 1}}} {
		if err := k.SetKeys(keys); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
