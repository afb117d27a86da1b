package api

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
)

func TestMarshal(t *testing.T) {
	for name, c := range map[string]struct {
		m    proto.Message
		want string
	}{
		"defaults are written": {
			&mesosv1.CommandInfo{Value: proto.String("ls"), Uris: []*mesosv1.CommandInfo_URI{{Value: proto.String("u")}}},
			`{"uris":[{"value":"u","extract":true}],"shell":true,"value":"ls"}`,
		},
		"a set default is written once": {&mesosv1.CommandInfo{Shell: proto.Bool(false)}, `{"shell":false}`},
		"64 bits are numbers":           {&mesosv1.FileInfo{Path: proto.String("/a<b"), Size: proto.Uint64(math.MaxUint64)}, `{"path":"/a\u003cb","size":18446744073709551615}`},
		"doubles have a fraction":       {&mesosv1.FrameworkInfo{User: proto.String("u"), Name: proto.String("n")}, `{"user":"u","name":"n","failover_timeout":0.0,"checkpoint":false,"role":"*"}`},
		"big doubles too":               {&mesosv1.Metric{Name: proto.String("m"), Value: proto.Float64(1e300)}, `{"name":"m","value":1.0e+300}`},
		"infinity is a string":          {&mesosv1.Metric{Name: proto.String("m"), Value: proto.Float64(math.Inf(-1))}, `{"name":"m","value":"-Infinity"}`},
		"bytes are base64":              {&mesosagent.ProcessIO_Data{Type: mesosagent.ProcessIO_Data_STDOUT.Enum(), Data: []byte{0xff, 0xfe}}, `{"type":"STDOUT","data":"//4="}`},
		"empty bytes are there":         {&mesosagent.Response_ReadFile{Size: proto.Uint64(3), Data: []byte{}}, `{"size":3,"data":""}`},
		"enums of a default by name":    {&mesosv1.NetworkInfo_IPAddress{}, `{"protocol":"IPv4"}`},
	} {
		got, err := MarshalJSON(c.m)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c.want)
		}
	}
}

func TestUnmarshalTakesWhatMesosTakes(t *testing.T) {
	call := func(s string) *mesosagent.Call {
		t.Helper()
		var c mesosagent.Call
		if err := UnmarshalJSON([]byte(s), &c); err != nil {
			t.Errorf("%s: %v", s, err)
		}
		return &c
	}
	if c := call(`{"type":"READ_FILE","read_file":{"path":"/x","offset":"7","length":5.0},"readFile":3,"other":{}}`); c.GetType() != mesosagent.Call_READ_FILE ||
		c.GetReadFile().GetOffset() != 7 || c.GetReadFile().GetLength() != 5 {
		t.Errorf("a numeric string, a whole double and unknown names: %v", c)
	}
	if c := call(`{"type":"NEVER_HEARD","get_containers":{"show_nested":"true","show_standalone":null}}`); c.Type != nil || !c.GetGetContainers().GetShowNested() ||
		c.GetGetContainers().ShowStandalone != nil {
		t.Errorf("an unknown optional enum, a truth as a string, null: %v", c)
	}
	c := call(`{"launch_container":{"container_id":{"value":"a"},"command":{"arguments":"one","uris":{"value":"u"}}}}`)
	if a := c.GetLaunchContainer().GetCommand().GetArguments(); len(a) != 1 || a[0] != "one" || len(c.GetLaunchContainer().GetCommand().GetUris()) != 1 {
		t.Errorf("one element for a list: %v", c)
	}
	var m mesosv1.Metric
	if err := UnmarshalJSON([]byte(`{"name":"m","value":"Infinity"}`), &m); err != nil || !math.IsInf(m.GetValue(), 1) {
		t.Errorf("infinity: %v, %v", &m, err)
	}
}

func TestUnmarshalRefusesInMesosWords(t *testing.T) {
	for body, want := range map[string]string{
		`{`:                   "Failed to parse body into JSON: ",
		`{} {}`:               "Failed to parse body into JSON: ",
		`[]`:                  "Expecting a JSON object",
		`7`:                   "Expecting a JSON object",
		`{"type":3}`:          "Not expecting a JSON number for field 'type'",
		`{"type":{}}`:         "Not expecting a JSON object for field 'type'",
		`{"read_file":"x"}`:   "Not expecting a JSON string for field 'read_file'",
		`{"list_files":true}`: "Not expecting a JSON boolean for field 'list_files'",
		`{"list_files":[1]}`:  "Not expecting a JSON array for field 'list_files'",
		`{"launch_container":{"container_id":{}},"read_file":{}}`:                                   "Missing required fields: read_file.path, read_file.offset, launch_container.container_id.value",
		`{"launch_container":{"container_id":{"value":"a"},"command":{"uris":[{"value":"a"},{}]}}}`: "Missing required fields: launch_container.command.uris[1].value",
		`{"attach_container_input":{"process_io":{"data":{"data":"***"}}}}`:                         "Failed to base64 decode bytes field 'data': ",
		`{"launch_container":{"container_id":{"value":"a"},"container":{"type":"LXC"}}}`:            "Failed to find enum for 'LXC'",
		`{"kill_container":{"container_id":{"value":"a"},"signal":1.5}}`:                            "Failed to parse '1.5' as a JSON number for field 'signal'",
		`{"kill_container":{"container_id":{"value":"a"},"signal":4294967296}}`:                     "Failed to parse '4294967296' as a JSON number for field 'signal'",
		`{"kill_container":{"container_id":{"value":"a"},"signal":1e999999999}}`:                    "Failed to parse '1e999999999' as a JSON number for field 'signal'",
		`{"get_containers":{"show_nested":"yes"}}`:                                                  "Failed to parse 'yes' as a JSON boolean for field 'show_nested'",
		strings.Repeat(`{"launch_container":`, 20000):                                               "Failed to parse body into JSON: ",
		`{"wait_container":{"container_id":{"value":"a","parent":{"value":"b","parent":{}}}}}`:      "Missing required fields: wait_container.container_id.parent.parent.value",
		`{"get_metrics":{"timeout":{"nanoseconds":"ten"}}}`:                                         "Failed to parse 'ten' as a JSON number for field 'nanoseconds'",
	} {
		var c mesosagent.Call
		if err := UnmarshalJSON([]byte(body), &c); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.80s: %v, want %s", body, err, want)
		}
	}
}

// FuzzJSON: no bytes make the codec panic, and a message stays the same by writing and reading.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"type":"READ_FILE","read_file":{"path":"/x","offset":7}}`))
	f.Add([]byte(`{"launch_container":{"container_id":{"value":"a","parent":{"value":"b"}},"command":{"value":"ls"},"resources":[{"name":"cpus","type":"SCALAR","scalar":{"value":0.5}}]}}`))
	f.Add([]byte(`{"attach_container_input":{"type":"PROCESS_IO","process_io":{"type":"DATA","data":{"type":"STDIN","data":"aGk="}}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var one, two mesosagent.Call
		if UnmarshalJSON(body, &one) != nil {
			return
		}
		first, err := MarshalJSON(&one)
		if err != nil {
			t.Fatal(err)
		}
		if err := UnmarshalJSON(first, &two); err != nil {
			t.Fatalf("%s: %v", first, err)
		}
		if second, err := MarshalJSON(&two); err != nil || string(second) != string(first) {
			t.Fatalf("%s, then %s, %v", first, second, err)
		}
	})
}
