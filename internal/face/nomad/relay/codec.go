package relay

import "fmt"

// maxMessage is what Nomad's client takes.
const maxMessage = 1<<31 - 1

// frame is one message, undecoded.
type frame struct{ data []byte }

// raw passes messages through as they are. It goes by protobuf's name, which is
// what they are.
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
