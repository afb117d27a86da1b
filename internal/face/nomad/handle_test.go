package nomad

import (
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
)

func FuzzHandle(f *testing.F) {
	h, err := newHandle(&nomaddriver.TaskConfig{Id: "alloc/web/aaaaaaaa"}, core.Container{Meta: core.Meta{ID: "0123"}})
	if err != nil {
		f.Fatal(err)
	}
	whole, err := proto.Marshal(h)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add([]byte("\x08\x02"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var h nomaddriver.TaskHandle
		if proto.Unmarshal(data, &h) != nil {
			return
		}
		id, st, err := readHandle(&h)
		switch {
		case err != nil && !errdefs.IsInvalidArgument(err):
			t.Errorf("%v is no InvalidArgument", err)
		case err == nil && (id == "" || st.Container == "" || h.GetVersion() != handleVersion):
			t.Errorf("took %q of %q, version %d", st.Container, id, h.GetVersion())
		}
	})
}
