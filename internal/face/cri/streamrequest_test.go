package cri

import (
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/face/cri/stream"
)

// FuzzStreamRequests: any request is refused, or has its kind and a stream.
func FuzzStreamRequests(f *testing.F) {
	for _, m := range []proto.Message{
		&v1.ExecRequest{ContainerId: "c", Cmd: []string{"x", ""}, Stdin: true, Tty: true}, &v1.AttachRequest{ContainerId: "c", Stdout: true},
		&v1.PortForwardRequest{PodSandboxId: "p", Port: []int32{1, 65535, 65536, -1}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e v1.ExecRequest
		if proto.Unmarshal(b, &e) == nil {
			r, err := execRequest(&e)
			checkRequest(t, r, err, stream.KindExec)
			if err == nil && len(r.Args) == 0 {
				t.Error("no command")
			}
		}
		var a v1.AttachRequest
		if proto.Unmarshal(b, &a) == nil {
			r, err := attachRequest(&a)
			checkRequest(t, r, err, stream.KindAttach)
		}
		var p v1.PortForwardRequest
		if proto.Unmarshal(b, &p) == nil {
			if r, err := forwardRequest(&p); err == nil && len(r.Ports) != len(p.GetPort()) {
				t.Errorf("%v became %v", p.GetPort(), r.Ports)
			}
		}
	})
}

func checkRequest(t *testing.T, r stream.Request, err error, kind stream.Kind) {
	t.Helper()
	if err == nil && (r.Kind != kind || r.TTY && r.Stderr || !r.Stdin && !r.Stdout && !r.Stderr) {
		t.Errorf("%+v was taken", r)
	}
}
