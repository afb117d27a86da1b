package kata

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	katatypes "github.com/longshore/longshore/api/kata/v1/types"
)

// words is a policy with the text of a list of the requests that it denies.
type words struct {
	mu    sync.Mutex // guards denied, set, asked, ended
	deny  string
	set   bool
	asked []string // the requests to decide, with their input
	ended []string // the requests that have ended, and whether they failed
}

func (w *words) Served() bool { return true }

func (w *words) InForce() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.set
}

func (w *words) Ask(_ context.Context, request string, input []byte) (func(bool), error) {
	end := func(failed bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = append(w.ended, fmt.Sprint(request, " failed ", failed))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, request+" "+string(input))
	if w.set && strings.Contains(w.deny, request) {
		return end, fmt.Errorf("%s is blocked by policy: it says so: %w", request, errdefs.ErrPermissionDenied)
	}
	return end, nil
}

func (w *words) Replace(ctx context.Context, text string, input []byte) error {
	if _, err := w.Ask(ctx, setPolicyRequest, input); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if text == "malformed" {
		return fmt.Errorf("line 1: %w", errdefs.ErrInvalidArgument)
	}
	w.deny, w.set = text, true
	return nil
}

// reads writes a text to a container's cat, ends it, and reads its output to the end.
func (r *rig) reads(t *testing.T, id, text, want string) {
	t.Helper()
	ctx := t.Context()
	if _, err := r.WriteStdin(ctx, &katav1.WriteStreamRequest{ContainerId: id, Data: []byte(text)}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.CloseStdin(ctx, &katav1.CloseStdinRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	got := ""
	for {
		a, err := r.ReadStdout(ctx, &katav1.ReadStreamRequest{ContainerId: id, Len: 3})
		if err != nil {
			t.Errorf("read: %v", err)
			return
		}
		if len(a.GetData()) == 0 {
			break
		}
		got += string(a.GetData())
	}
	if got != want {
		t.Errorf("the output is %q, want %q", got, want)
	}
	if a, err := r.WaitProcess(ctx, &katav1.WaitProcessRequest{ContainerId: id}); err != nil || a.GetStatus() != 3 {
		t.Errorf("after its output: %v, %v", a, err)
	}
}

func TestPolicyDecides(t *testing.T) {
	ctx := t.Context()
	w := &words{}
	r := newRigThatAllows(t, Requests{Deny: []string{"PauseContainerRequest"}}, w)
	set := func(text string) error {
		_, err := r.SetPolicy(ctx, &katav1.SetPolicyRequest{Policy: text})
		return err
	}
	a, err := r.GetGuestDetails(ctx, &katav1.GuestDetailsRequest{})
	if err != nil || fmt.Sprint(a.GetAgentDetails().GetExtraFeatures()) != "[agent-policy seccomp]" {
		t.Errorf("details: %v, %v", a, err)
	}
	r.sandbox(t)
	if len(w.asked) > 0 {
		t.Errorf("before there is a policy it was asked %q", w.asked)
	}
	if got := status.Code(set("malformed")); got != codes.InvalidArgument {
		t.Errorf("a malformed policy: %v", got)
	}
	if err := set("ExecProcessRequest ReadStreamRequest"); err != nil {
		t.Fatal(err)
	}
	r.run(t, "c1", "cat")
	_, err = r.ExecProcess(ctx, &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1"})
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "ExecProcessRequest is blocked by policy: it says so") {
		t.Errorf("exec: %v", err)
	}
	if got := code(r.PauseContainer(ctx, &katav1.PauseContainerRequest{ContainerId: "c1"})); got != codes.PermissionDenied {
		t.Errorf("what the options deny and the policy allows: %v", got)
	}
	if got := code(r.StartContainer(ctx, &katav1.StartContainerRequest{ContainerId: "absent"})); got == codes.OK {
		t.Error("a container that is not there was started")
	}
	w.mu.Lock()
	ended := strings.Join(w.ended, ", ")
	w.mu.Unlock()
	if !strings.Contains(ended, "StartContainerRequest failed false") || !strings.HasSuffix(ended, "StartContainerRequest failed true") {
		t.Errorf("the policy was told: %s", ended)
	}
	r.reads(t, "c1", "secret", "")
	if _, err := katav1.NewHealthClient(r.dial(t)).Check(ctx, &katav1.CheckRequest{}); err != nil {
		t.Errorf("Check: %v", err)
	}
	if err := set("SetPolicyRequest"); err != nil {
		t.Fatal(err)
	}
	r.run(t, "c2", "cat")
	r.reads(t, "c2", "open", "open")
	if err := set(""); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a policy that the one before denies: %v", err)
	}
	last := w.asked[len(w.asked)-1]
	if last != `SetPolicyRequest {"policy":""}` {
		t.Errorf("last it was asked %q", last)
	}
}

// TestPolicyInput: requests as policies of Kata read them.
func TestPolicyInput(t *testing.T) {
	for _, tt := range []struct {
		m    proto.Message
		want string
	}{
		{&katav1.SetPolicyRequest{Policy: "a\"\n"}, `{"policy":"a\"\n"}`},
		{&katav1.StartContainerRequest{}, `{"container_id":""}`},
		{&katav1.WriteStreamRequest{ContainerId: "c", Data: []byte{0, 255}}, `{"container_id":"c","exec_id":"","data":[0,255]}`},
		{&katav1.AddSwapRequest{PCIPath: []uint32{2, 1}}, `{"PCIPath":[2,1]}`},
		{&katav1.MemHotplugByProbeRequest{MemHotplugProbeAddr: []uint64{1 << 63}}, `{"memHotplugProbeAddr":[9223372036854775808]}`},
		{&katav1.SetGuestDateTimeRequest{Sec: -1}, `{"Sec":-1,"Usec":0}`},
		{&katav1.UpdateContainerRequest{ContainerId: "c"}, `{"container_id":"c","resources":null}`},
		{&katav1.Mount{Type: "bind"}, `{"destination":"","source":"","type_":"bind","options":[]}`},
		{&katav1.LinuxSyscall{ErrnoRet: &katav1.LinuxSyscall_Errnoret{Errnoret: 1}}, `{"Names":[],"Action":"","ErrnoRet":{"Errnoret":1},"Args":[]}`},
		{&katav1.LinuxSyscall{}, `{"Names":[],"Action":"","ErrnoRet":null,"Args":[]}`},
		{
			&katav1.UpdateInterfaceRequest{Interface: &katatypes.Interface{Device: "eth0", IPAddresses: []*katatypes.IPAddress{{Family: katatypes.IPFamily_v6, Address: "::1", Mask: "64"}}}},
			`{"interface":{"device":"eth0","name":"","IPAddresses":[{"family":1,"address":"::1","mask":"64"}],"mtu":0,"hwAddr":"","devicePath":"","type_":"","raw_flags":0}}`,
		},
		{
			&katav1.CopyFileRequest{Path: "/p", FileMode: unix.S_IFLNK | 0o777, Data: []byte("to"), FileSize: 2, Uid: -1, Offset: 1 << 40},
			`{"path":"/p","file_type":"Symlink","symlink_target":"to","file_size":2,"file_mode":41471,"dir_mode":0,"uid":-1,"gid":0,"offset":1099511627776}`,
		},
		{&katav1.CopyFileRequest{FileMode: unix.S_IFDIR}, `{"path":"","file_type":"Directory","symlink_target":null,"file_size":0,"file_mode":16384,"dir_mode":0,"uid":0,"gid":0,"offset":0}`},
		{&katav1.CopyFileRequest{FileMode: unix.S_IFREG, Data: make([]byte, 2*maxPolicyBytes)}, `{"path":"","file_type":"Regular","symlink_target":null,"file_size":0,"file_mode":32768,"dir_mode":0,"uid":0,"gid":0,"offset":0}`},
		{&katav1.CopyFileRequest{FileMode: unix.S_IFREG | unix.S_IFDIR}, `{"path":"","file_type":"Unknown","symlink_target":null,"file_size":0,"file_mode":49152,"dir_mode":0,"uid":0,"gid":0,"offset":0}`},
	} {
		got, err := policyInput(tt.m)
		if err != nil || string(got) != tt.want {
			t.Errorf("%T: %v\n%s\n%s", tt.m, err, got, tt.want)
		}
	}
	for name, m := range map[string]proto.Message{
		"bytes that are too many":    &katav1.WriteStreamRequest{Data: make([]byte, maxPolicyBytes+1)},
		"a target that is not UTF-8": &katav1.CopyFileRequest{FileMode: unix.S_IFLNK, Data: []byte{0xff}},
	} {
		if _, err := policyInput(m); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzPolicyInput: every container that can be sent is JSON, with all of its fields.
func FuzzPolicyInput(f *testing.F) {
	f.Add([]byte{})
	whole, err := proto.Marshal(&katav1.CreateContainerRequest{
		ContainerId: "c", StringUser: &katav1.StringUser{Uid: "u"}, Storages: []*katav1.Storage{{Driver: "blk", FsGroup: &katav1.FSGroup{GroupId: 1}}},
		OCI: &katav1.Spec{Annotations: map[string]string{"a\x00": "\"", "": "<"}, Process: &katav1.Process{Args: []string{"x"}, Env: []string{"É"}}, Linux: &katav1.Linux{Resources: &katav1.LinuxResources{}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, wire []byte) {
		var req katav1.CreateContainerRequest
		if proto.Unmarshal(wire, &req) != nil {
			return
		}
		input, err := policyInput(&req)
		if err != nil {
			return
		}
		var got map[string]any
		if err := json.Unmarshal(input, &got); err != nil {
			t.Fatalf("%s: %v", input, err)
		}
		if got["container_id"] != req.GetContainerId() || len(got) != req.ProtoReflect().Descriptor().Fields().Len() {
			t.Errorf("%s is %v", input, &req)
		}
	})
}
