package listcache

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// number is that of the entries in every answer of the API that is a list.
const number = 1

// Entry is m as a list holds it.
func Entry(m proto.Message) ([]byte, error) {
	size := proto.Size(m)
	b := protowire.AppendTag(make([]byte, 0, protowire.SizeTag(number)+protowire.SizeBytes(size)), number, protowire.BytesType)
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(protowire.AppendVarint(b, uint64(size)), m)
}

// Answer gives an empty list its entries. It takes them for fields that it does
// not know, which are sent as they are: whoever decodes it finds them.
func Answer[M proto.Message](empty M, entries [][]byte) M {
	empty.ProtoReflect().SetUnknown(slices.Concat(entries...))
	return empty
}

// chunk is about how much one message of a streamed list holds: far below what
// clients take, however long the annotations are.
const chunk = 1 << 20

// InChunks sends items in messages of at least one of them; size tells the length
// of one in bytes.
func InChunks[T any](items []T, size func(T) int, send func([]T) error) error {
	from, sum := 0, 0
	for i, item := range items {
		n := size(item)
		if i > from && sum+n > chunk {
			if err := send(items[from:i]); err != nil {
				return err
			}
			from, sum = i, 0
		}
		sum += n
	}
	if from == len(items) {
		return nil
	}
	return send(items[from:])
}

// Length is the size of an entry.
func Length(entry []byte) int { return len(entry) }

// Size is the size of a message.
func Size[M proto.Message](m M) int { return proto.Size(m) }
