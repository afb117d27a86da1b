package composefile

import (
	"encoding/json"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// TestAnswersKeepTheirMessages checks that a project survives the way from one program to the other.
func TestAnswersKeepTheirMessages(t *testing.T) {
	service := Service{
		Name: "web", Scale: 2, PullAfter: time.Hour, DependsOn: []Dependency{{"db", Healthy, true, false}}, Files: []File{{"/x", []byte{0, 1}, 0o400, 1, 2}},
		Request: &longshorev1.CreateRequest{Image: "box", StopGrace: durationpb.New(90 * time.Second), Labels: map[string]string{"a": "b"}, Seccomp: []byte("{}")},
	}
	network := Network{Key: "n", External: true, Request: &longshorev1.CreateNetworkRequest{Name: "x_n", Subnets: []*longshorev1.Subnet{{Range: "10.0.0.0/24"}}}}
	volume := Volume{Key: "v", At: "f:1", Request: &longshorev1.CreateVolumeRequest{Name: "x_v", Options: map[string]string{"type": "nfs"}}}
	data, err := json.Marshal(Answer{Project: &Project{Name: "x", Services: []Service{service}, Networks: []Network{network}, Volumes: []Volume{volume}}})
	if err != nil {
		t.Fatal(err)
	}
	var a Answer
	if err := json.Unmarshal(data, &a); err != nil {
		t.Fatal(err)
	}
	s, n, v := a.Project.Services[0], a.Project.Networks[0], a.Project.Volumes[0]
	if !proto.Equal(s.Request, service.Request) || !proto.Equal(n.Request, network.Request) || !proto.Equal(v.Request, volume.Request) {
		t.Errorf("got %v, %v, %v", s.Request, n.Request, v.Request)
	}
	if s.Name != "web" || s.Scale != 2 || s.PullAfter != time.Hour || s.DependsOn[0] != service.DependsOn[0] || string(s.Files[0].Content) != "\x00\x01" || !n.External || v.At != "f:1" {
		t.Errorf("got %+v, %+v, %+v", s, n, v)
	}
	for _, bad := range []string{`{"Project": {"Services": [{"Request": {"nothing": 1}}]}}`, `{"Project": {"Networks": [{"Request": 1}]}}`, `{"Project": {"Volumes": [{"Request": []}]}}`} {
		if json.Unmarshal([]byte(bad), &a) == nil {
			t.Errorf("%s is read", bad)
		}
	}
}
