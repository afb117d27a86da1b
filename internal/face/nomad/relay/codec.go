package relay

import "fmt"

// maxMessage is the limit of Nomad's client.
const maxMessage = 1<<31 - 1

// frame is one message, undecoded.
type frame struct{ data []byte }

// raw passes messages through unchanged. It has protobuf's name, because they are protobuf.
type raw struct{}

// Name implements encoding.Codec.
func (raw) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (raw) Marshal(v any) ([]byte, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("relay: cannot send %T", v)
	}
	return f.data, nil
}

// Unmarshal implements encoding.Codec.
func (raw) Unmarshal(data []byte, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("relay: cannot receive %T", v)
	}
	f.data = append([]byte(nil), data...)
	return nil
}
