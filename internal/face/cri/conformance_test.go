package cri

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/conformancetest"
)

type row struct{ state, how, shown string }

// table reads the CRI table of docs/conformance.md.
func table(t *testing.T) map[string]row {
	t.Helper()
	doc := conformancetest.Read(t, "../../..")
	line := regexp.MustCompile(`^\| ((?:Runtime|Image)Service/\w+) \| (\w+) \| (.*) \| (.*) \|$`)
	rows := map[string]row{}
	for l := range strings.Lines(doc) {
		if m := line.FindStringSubmatch(strings.TrimSpace(l)); m != nil {
			if _, twice := rows[m[1]]; twice {
				t.Errorf("%s has two rows", m[1])
			}
			rows[m[1]] = row{m[2], m[3], m[4]}
		}
	}
	return rows
}

type method struct {
	name   string // Service/Method
	full   string
	stream bool
}

func methods() (all []method) {
	for _, d := range []grpc.ServiceDesc{v1.RuntimeService_ServiceDesc, v1.ImageService_ServiceDesc} {
		service := strings.TrimPrefix(d.ServiceName, "runtime.v1.")
		for _, m := range d.Methods {
			all = append(all, method{service + "/" + m.MethodName, "/" + d.ServiceName + "/" + m.MethodName, false})
		}
		for _, m := range d.Streams {
			all = append(all, method{service + "/" + m.StreamName, "/" + d.ServiceName + "/" + m.StreamName, true})
		}
	}
	return all
}

func TestEveryCallHasARow(t *testing.T) {
	rows := table(t)
	for _, m := range methods() {
		r, ok := rows[m.name]
		if !ok {
			t.Errorf("%s has no row", m.name)
			continue
		}
		if r.state != "works" && r.state != "differs" && r.state != "refused" {
			t.Errorf("%s: state %q", m.name, r.state)
		}
		if r.state != "works" && r.how == "" {
			t.Errorf("%s %s without a reason", m.name, r.state)
		}
		delete(rows, m.name)
	}
	for name := range rows {
		t.Errorf("%s is no call of this API", name)
	}
}

// TestRowsNameTestsThatExist keeps the last column true.
func TestRowsNameTestsThatExist(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var src strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		src.Write(b)
	}
	for name, r := range table(t) {
		for test := range strings.SplitSeq(r.shown, ", ") {
			if dir, fn := path.Split(test); dir != "" {
				if err := exec.CommandContext(t.Context(), "grep", "-rq", "func "+fn+"(", "../../../"+dir).Run(); err != nil {
					t.Errorf("%s: %s is nowhere", name, test)
				}
				continue
			}
			if !strings.Contains(src.String(), "func "+test+"(") {
				t.Errorf("%s: test %q is nowhere", name, test)
			}
		}
	}
}

// TestRefusedCallsSayUnimplemented asks every call with an empty request: those
// that the table says are refused answer Unimplemented, and no other does.
func TestRefusedCallsSayUnimplemented(t *testing.T) {
	n := newTestNode(t)
	n.pod(t, "p") // so that a stream of events has something to say
	rows := table(t)
	for _, m := range methods() {
		var err error
		if m.stream {
			var s grpc.ClientStream
			if s, err = n.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, m.full); err == nil {
				if err = s.SendMsg(&emptypb.Empty{}); err == nil {
					_ = s.CloseSend()
					err = s.RecvMsg(&emptypb.Empty{})
				}
			}
		} else {
			err = n.conn.Invoke(t.Context(), m.full, &emptypb.Empty{}, &emptypb.Empty{})
		}
		refused := status.Code(err) == codes.Unimplemented
		// The node of this test makes no checkpoints; test/checkpoint has one that does.
		if want := rows[m.name].state == "refused" || slices.Contains([]string{"CheckpointContainer", "CheckpointPod", "RestorePod"}, path.Base(m.name)); refused != want {
			t.Errorf("%s: the table says %s, the server %v", m.name, rows[m.name].state, err)
		}
		if status.Code(err) == codes.Internal {
			t.Errorf("%s: an empty request gives %v", m.name, err)
		}
	}
}
