package volumes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/docker/volumes"
)

// client is a client of the requests about volumes.
type client struct {
	t      *testing.T
	node   *enginetest.Node
	mux    *dockerhttp.Mux
	events []string
}

func newClient(t *testing.T) *client {
	c := &client{t: t, node: enginetest.New(t), mux: &dockerhttp.Mux{Versions: dockerhttp.Range{Min: dockerhttp.MustParse("1.24"), Max: dockerhttp.MustParse("1.51")}}}
	s := &volumes.Server{
		Engine: c.node.As("docker"), Size: func(_ context.Context, dir string) (uint64, error) {
			_, err := os.Stat(dir)
			return 10, err
		},
		Publish: func(typ, action, id string, attributes map[string]string) {
			c.events = append(c.events, fmt.Sprint(typ, " ", action, " ", len(id), " ", attributes))
		},
	}
	s.Routes(c.mux)
	return c
}

// want asserts the status and a part of the answer.
func (c *client) want(method, path, body string, status int, part string) string {
	c.t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	c.mux.ServeHTTP(w, req)
	if got := strings.TrimSpace(w.Body.String()); w.Code != status || !strings.Contains(got, part) {
		c.t.Errorf("%s %s %s: %d %s, want %d %s", method, path, body, w.Code, got, status, part)
	}
	return w.Body.String()
}

func (c *client) names(filters string) string {
	c.t.Helper()
	var list struct{ Volumes []dockertypes.Volume }
	if err := json.Unmarshal([]byte(c.want("GET", "/volumes?filters="+url.QueryEscape(filters), "", 200, "")), &list); err != nil {
		c.t.Error(err)
	}
	var names []string
	for _, v := range list.Volumes {
		names = append(names, v.Name)
	}
	return strings.Join(names, " ")
}

// use makes a container that uses a volume.
func (c *client) use(volume string) core.ID {
	c.t.Helper()
	sb, image := c.node.Pod("docker", "web"), c.node.AddImage("busybox", ocispec.ImageConfig{}, nil)
	ct, err := c.node.As("docker").CreateContainer(c.t.Context(), core.ContainerConfig{
		Key: "web", Sandbox: sb.ID, Root: core.Root{Image: image.ID}, Spec: enginetest.Args("sleep"), Volumes: []core.VolumeMount{{Name: volume, Target: "/data"}},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return ct.ID
}

func TestCreateListInspectRemove(t *testing.T) {
	c := newClient(t)
	c.want("GET", "/volumes", "", 200, `{"Volumes":[],"Warnings":null}`)
	made := c.want("POST", "/volumes/create", `{"Name":"db","Labels":{"a":"b"}}`, 201, `"Driver":"local","Labels":{"a":"b"},"Mountpoint":"/`)
	// A second create gets the first one's volume, also with other options.
	for _, body := range []string{`{"Name":"db"}`, `{"Name":"db","Driver":"local","DriverOpts":{"type":"tmpfs","device":"tmpfs"}}`} {
		if again := c.want("POST", "/volumes/create", body, 201, `"Options":null`); again != made {
			t.Errorf("%s, at first %s", again, made)
		}
	}
	c.want("POST", "/volumes/create", `{"Name":"mem","DriverOpts":{"type":"tmpfs","device":"tmpfs"}}`, 201, `"Options":{"device":"tmpfs","type":"tmpfs"}`)
	var none dockertypes.Volume
	if err := json.Unmarshal([]byte(c.want("POST", "/volumes/create", "", 201, `"Labels":{"com.docker.volume.anonymous":""}`)), &none); err != nil || len(none.Name) != 64 {
		t.Errorf("%+v %v", none, err)
	}
	if got := c.want("GET", "/volumes/db", "", 200, ""); got != made {
		t.Errorf("%s, made as %s", got, made)
	}
	id := c.use("db")
	for filters, want := range map[string]string{
		`{"name":["^db$"]}`: "db", `{"label":["a=b"]}`: "db", `{"label":["com.docker.volume.anonymous"]}`: none.Name, `{"dangling":["false"]}`: "db", `{"driver":["nfs"]}`: "",
		`{"dangling":{"true":true},"name":{"m":true}}`: "mem",
	} {
		if got := c.names(filters); got != want {
			t.Errorf("%s: %s, want %s", filters, got, want)
		}
	}
	c.want("GET", "/volumes?filters="+url.QueryEscape(`{"color":["red"]}`), "", 400, "invalid filter 'color'")
	c.want("GET", "/volumes/nowhere", "", 404, `{"message":"get nowhere: no such volume"}`)
	c.want("DELETE", "/volumes/db", "", 409, "remove db: volume is in use - ["+string(id)+"]")
	c.want("DELETE", "/volumes/db?force=1", "", 409, "volume is in use")
	c.want("DELETE", "/volumes/mem", "", 204, "")
	c.want("DELETE", "/volumes/mem", "", 404, "get mem: no such volume")
	c.want("DELETE", "/volumes/mem?force=1", "", 204, "")
	c.want("PUT", "/volumes/db", `{}`, 503, "volume update only valid for cluster volumes")
	c.want("PUT", "/v1.41/volumes/db", `{}`, 503, "volume update only valid for cluster volumes")
	want := []string{"volume create 2 map[driver:local]", "volume create 3 map[driver:local]", "volume create 64 map[driver:local]", "volume destroy 3 map[driver:local]"}
	if !slices.Equal(c.events, want) {
		t.Errorf("events %q", c.events)
	}
}

func TestRefusedCreates(t *testing.T) {
	c := newClient(t)
	for body, want := range map[string]string{
		`{"Name":"x1","Driver":"nfs"}`:              `404 error looking up volume plugin nfs: plugin \"nfs\" not found`,
		`{"Name":"a/b"}`:                            `400 create a/b: \"a/b\" includes invalid characters for a local volume name`,
		`{"Name":".."}`:                             `400 includes invalid characters`,
		`{"Name":"x1","DriverOpts":{"nosuch":"1"}}`: `400 create x1: invalid option: \"nosuch\"`,
		`{"Name":"x1","ClusterVolumeSpec":{}}`:      `503 need a swarm manager`,
		`{"Name":"x"}`:                              `400 create x: volume name is too short`,
		`{"Name":1}`:                                `400 invalid JSON`,
	} {
		var status int
		var text string
		if _, err := fmt.Sscan(want, &status); err != nil {
			t.Fatal(err)
		}
		_, text, _ = strings.Cut(want, " ")
		c.want("POST", "/volumes/create", body, status, text)
	}
	if got := c.names(""); got != "" || len(c.events) > 0 {
		t.Errorf("left %s, %q", got, c.events)
	}
}

func TestPrune(t *testing.T) {
	c := newClient(t)
	for _, body := range []string{`{"Name":"db"}`, `{"Name":"web"}`, `{"Name":"kept","Labels":{"keep":""}}`, `{"Name":"mem","DriverOpts":{"type":"tmpfs","device":"tmpfs"}}`, `{}`} {
		c.want("POST", "/volumes/create", body, 201, "")
	}
	c.use("web")
	prune := func(version, filters string) string {
		return version + "/volumes/prune?filters=" + url.QueryEscape(filters)
	}
	c.want("POST", prune("", `{"all":["maybe"]}`), "", 400, "invalid filter 'all'")
	c.want("POST", prune("", `{"all":["1","0"]}`), "", 400, "only one value is expected")
	c.want("POST", prune("", `{"until":["1h"]}`), "", 400, "invalid filter 'until'")
	c.want("POST", prune("", `{"label":["keep"]}`), "", 200, `{"VolumesDeleted":[],"SpaceReclaimed":0}`)
	c.want("POST", prune("", ""), "", 200, `"SpaceReclaimed":10`)
	if got := c.names(""); got != "db kept mem web" {
		t.Errorf("left %s", got)
	}
	c.want("POST", prune("", `{"all":["true"],"label!":["keep"]}`), "", 200, `{"VolumesDeleted":["db"],"SpaceReclaimed":10}`)
	c.want("POST", prune("/v1.41", ""), "", 200, `{"VolumesDeleted":["kept"],"SpaceReclaimed":10}`)
	if got := c.names(""); got != "mem web" {
		t.Errorf("left %s", got)
	}
	if got := c.events[len(c.events)-2:]; got[0] != "volume destroy 4 map[driver:local]" || got[1] != "volume prune 0 map[reclaimed:10]" {
		t.Errorf("events %q", got)
	}
}
