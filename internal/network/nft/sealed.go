package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// sealedTable is the name of the table of Seal, in the inet family, in the namespace that sends the
// packets of networks over several nodes.
const sealedTable = "longshore-sealed"

// The chains and the set of Seal.
const (
	chainMark     = "mark"
	chainReceived = "received"
	chainSent     = "sent"
	setSealed     = "networks"
)

// Sealed identifies a network by fields of its VXLAN packets.
type Sealed struct {
	Port uint16 // UDP, of the destination
	VNI  uint32
}

// Seal makes a namespace drop packets of these networks that IPsec has not protected, incoming and
// outgoing. It replaces the list of an earlier call. Each packet gets the mark that IPsec's
// policies match: outgoing ones before the policy lookup, incoming ones before delivery, where a
// policy checks their protection. namespace nil is the caller's own.
func Seal(namespace *os.File, mark uint32, list []Sealed) error {
	c, err := dialIn(namespace)
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: sealedTable, Family: nftables.TableFamilyINet}
	c.AddTable(table)
	c.DelTable(table)
	if len(list) > 0 {
		if err := layoutSealed(c, c.AddTable(table), mark, list); err != nil {
			return fmt.Errorf("build table %s: %w", sealedTable, err)
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("build table %s: %w", sealedTable, err)
	}
	return nil
}

func layoutSealed(c *nftables.Conn, table *nftables.Table, mark uint32, list []Sealed) error {
	set := sealedSet(table)
	if err := addSet(c, set, nil); err != nil {
		return err
	}
	var elems []nftables.SetElement
	for _, s := range list {
		elems = append(elems, nftables.SetElement{Key: s.key()})
	}
	for chunk := range slices.Chunk(elems, maxElements) {
		if err := c.SetAddElements(set, chunk); err != nil {
			return err
		}
	}
	for _, r := range sealedRules(table, set, mark) {
		c.AddChain(r.chain)
		for _, exprs := range r.rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: r.chain, Exprs: exprs})
		}
	}
	return nil
}

func sealedRules(table *nftables.Table, set *nftables.Set, mark uint32) []chainRules {
	theirs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		// Behind the header of UDP, and the flags of VXLAN.
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 12, Len: 3},
		&expr.Lookup{SourceRegister: reg0, SetName: set.Name, SetID: set.ID},
	}
	setMark := []expr.Any{
		&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}
	none := &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}}
	refuse := seq([]expr.Any{&expr.Counter{}}, drop())
	return []chainRules{
		// A chain of this type has the packet routed again, by its mark.
		{&nftables.Chain{Table: table, Name: chainMark, Type: nftables.ChainTypeRoute, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityMangle}, [][]expr.Any{
			seq(theirs, setMark),
		}},
		// These chains are the last ones, after other programs' changes of marks and routes.
		{&nftables.Chain{Table: table, Name: chainSent, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPostrouting, Priority: lastPriority}, [][]expr.Any{
			seq(theirs, []expr.Any{&expr.Rt{Key: rtIPsec, Register: 1}, none}, refuse),
		}},
		{&nftables.Chain{Table: table, Name: chainReceived, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: lastPriority}, [][]expr.Any{
			seq(theirs, []expr.Any{&expr.Meta{Key: metaSecpath, Register: 1}, none}, refuse),
			seq(theirs, setMark),
		}},
	}
}

// lastPriority is behind those that other programs' chains have.
var lastPriority = nftables.ChainPriorityRef(1000)

// Of the kernel, as the library does not have them: NFT_RT_XFRM, whether the packet's route leads
// through IPsec; NFT_META_SECPATH, whether the packet came through it.
const (
	rtIPsec     expr.RtKey   = 4
	metaSecpath expr.MetaKey = 25
)

// sealedSet has ports and numbers of networks. It shows the numbers as marks: a set has no type
// for 24 bits.
func sealedSet(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: setSealed, Concatenation: true, KeyType: nftables.MustConcatSetType(nftables.TypeInetService, nftables.TypeMark)}
}

// key encodes an element. Every part of a concatenation fills whole 4-byte registers.
func (s Sealed) key() []byte {
	key := append(binary.BigEndian.AppendUint16(nil, s.Port), 0, 0)
	return binary.BigEndian.AppendUint32(key, s.VNI<<8)
}

// SealedNetworks returns the list of the last Seal in a namespace, which an earlier process may
// have called.
func SealedNetworks(namespace *os.File) ([]Sealed, error) {
	c, err := dialIn(namespace)
	if err != nil {
		return nil, err
	}
	set := sealedSet(&nftables.Table{Name: sealedTable, Family: nftables.TableFamilyINet})
	// The error of listing elements does not tell that there is no set.
	if _, err := c.GetSetByName(set.Table, set.Name); errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	elems, err := c.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("list table %s: %w", sealedTable, err)
	}
	var list []Sealed
	for _, e := range elems {
		if len(e.Key) == 8 {
			list = append(list, Sealed{binary.BigEndian.Uint16(e.Key), binary.BigEndian.Uint32(e.Key[4:]) >> 8})
		}
	}
	return list, nil
}
