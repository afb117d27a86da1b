package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
)

// request is one row of a table.
type request struct {
	method, path string // POST /api/v1 where they are empty
	headers      string // lines "Name: value"
	body         string
}

func (q request) make(t *testing.T) *http.Request {
	t.Helper()
	if q.method == "" {
		q.method = http.MethodPost
	}
	if q.path == "" {
		q.path = "/api/v1"
	}
	r := httptest.NewRequestWithContext(t.Context(), q.method, "http://x"+q.path, strings.NewReader(q.body))
	for line := range strings.Lines(q.headers) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		r.Header.Add(name, strings.TrimSpace(value))
	}
	return r
}

const (
	inJSON   = "Content-Type: application/json\n"
	inRecord = "Content-Type: application/recordio\nMessage-Content-Type: application/json\n"
	health   = `{"type":"GET_HEALTH"}`
	attach   = `{"type":"ATTACH_CONTAINER_OUTPUT","attach_container_output":{"container_id":{"value":"a"}}}`
)

func records(list ...string) string {
	var b bytes.Buffer
	for _, r := range list {
		_ = WriteRecord(&b, []byte(r))
	}
	return b.String()
}

// healthy answers GET_HEALTH, and everything else with nothing.
func healthy(_ context.Context, x *Exchange) error {
	if x.Call.GetType() != mesosagent.Call_GET_HEALTH {
		return nil
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_HEALTH.Enum(), GetHealth: &mesosagent.Response_GetHealth{Healthy: proto.Bool(true)}})
}

// TestChecks is the table of the contract: the first check that fails gives the answer's status and
// text.
func TestChecks(t *testing.T) {
	protobufCall, err := proto.Marshal(&mesosagent.Call{Type: mesosagent.Call_GET_HEALTH.Enum()})
	if err != nil {
		t.Fatal(err)
	}
	h := &Handler{Call: healthy, MaxMessage: 4096}
	for name, c := range map[string]struct {
		q    request
		code int
		text string
	}{
		"no such path":                  {request{path: "/api/v2", headers: inJSON, body: health}, 404, "404 Not Found."},
		"a path that only begins so":    {request{path: "/api/v1x", headers: inJSON, body: health}, 404, "404 Not Found."},
		"a GET":                         {request{method: "GET"}, 405, "405 Method Not Allowed. Expecting one of { 'POST' }, but received 'GET'."},
		"no Content-Type":               {request{headers: "Accept: text/html", body: health}, 400, "Expecting 'Content-Type' to be present"},
		"a foreign Content-Type":        {request{headers: "Content-Type: text/plain"}, 415, "Expecting 'Content-Type' of " + anyForms},
		"a Content-Type with a charset": {request{headers: "Content-Type: application/json; charset=utf-8"}, 415, "Expecting 'Content-Type' of " + anyForms},
		"a Content-Type in capitals":    {request{headers: "Content-Type: Application/JSON"}, 415, "Expecting 'Content-Type' of " + anyForms},
		"recordio of nothing":           {request{headers: "Content-Type: application/recordio"}, 400, "Expecting 'Message-Content-Type' to be set for streaming requests"},
		"recordio of recordio":          {request{headers: "Content-Type: application/recordio\nMessage-Content-Type: application/recordio"}, 415, "Expecting 'Message-Content-Type' of " + messageForms},
		"JSON of JSON":                  {request{headers: inJSON + "Message-Content-Type: application/json"}, 415, "Expecting 'Message-Content-Type' to be not set for non-streaming requests"},
		"nothing acceptable":            {request{headers: inJSON + "Accept: text/html, application/xml"}, 406, "Expecting 'Accept' to allow " + anyForms},
		"an empty Accept":               {request{headers: inJSON + "Accept:"}, 406, "Expecting 'Accept' to allow " + anyForms},
		"all refused":                   {request{headers: inJSON + "Accept: */*;q=0"}, 406, "Expecting 'Accept' to allow " + anyForms},
		"records of nothing":            {request{headers: inJSON + "Accept: application/recordio\nMessage-Accept: text/html"}, 406, "Expecting 'Message-Accept' to allow " + messageForms},
		"no records, but Message":       {request{headers: inJSON + "Accept: application/json\nMessage-Accept: application/json"}, 406, "Expecting 'Message-Accept' to be not set for non-streaming responses"},
		"bytes that are no protobuf":    {request{headers: "Content-Type: application/x-protobuf", body: "\xff"}, 400, "Failed to parse body into a protobuf object"},
		"protobuf without a required":   {request{headers: "Content-Type: application/x-protobuf", body: "\x08\x07\x22\x00"}, 400, "Failed to parse body into a protobuf object"},
		"no type":                       {request{headers: inJSON, body: `{}`}, 400, "Failed to validate agent::Call: Expecting 'type' to be present"},
		"no payload":                    {request{headers: inJSON, body: `{"type":"READ_FILE"}`}, 400, "Failed to validate agent::Call: Expecting 'read_file' to be present"},
		"too much":                      {request{headers: inJSON, body: strings.Repeat(" ", 4097)}, 413, "413 Request Entity Too Large."},
		"records for a plain call":      {request{headers: inRecord, body: records(health)}, 415, "Streaming 'Content-Type' application/recordio is not supported for GET_HEALTH call"},
		"no record at all":              {request{headers: inRecord}, 400, "Received EOF while reading request body"},
		"half a record":                 {request{headers: inRecord, body: "30\n" + health}, 400, "Received EOF while reading request body"},
		"a bad length":                  {request{headers: inRecord, body: "0x5\n" + health}, 400, "Failed to decode length '0x5'"},
		"a record too long":             {request{headers: inRecord, body: "99999\n" + health}, 400, "the record is too long: 99999 bytes, at most 4096"},
		"input without records":         {request{headers: inJSON, body: `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"CONTAINER_ID","container_id":{"value":"a"}}}`}, 415, "Expecting 'Content-Type' to be application/recordio for ATTACH_CONTAINER_INPUT call"},
		"records of a plain answer":     {request{headers: inJSON + "Accept: application/recordio", body: health}, 406, "Streaming response is not supported for GET_HEALTH call"},
		"UNKNOWN":                       {request{headers: inJSON, body: `{"type":"UNKNOWN"}`}, 501, "501 Not Implemented."},

		"JSON":                      {request{headers: inJSON, body: health}, 200, `{"type":"GET_HEALTH","get_health":{"healthy":true}}`},
		"protobuf in, JSON out":     {request{headers: "Content-Type: application/x-protobuf", body: string(protobufCall)}, 200, `{"type":"GET_HEALTH","get_health":{"healthy":true}}`},
		"JSON in, protobuf out":     {request{headers: inJSON + "Accept: application/x-protobuf", body: health}, 200, "\x08\x01\x12\x02\x08\x01"},
		"by a slash":                {request{path: "/api/v1/", headers: inJSON, body: health}, 200, `{"type":"GET_HEALTH","get_health":{"healthy":true}}`},
		"by the agent's own name":   {request{path: "/slave(1)/api/v1", headers: inJSON, body: health}, 200, `{"type":"GET_HEALTH","get_health":{"healthy":true}}`},
		"JSON before protobuf":      {request{headers: inJSON + "Accept: application/x-protobuf, APPLICATION/*;q=0.1", body: health}, 200, `{"type":"GET_HEALTH","get_health":{"healthy":true}}`},
		"JSON refused":              {request{headers: inJSON + "Accept: application/json;q=0.0, */*", body: health}, 200, `{"type":"GET_HEALTH","get_health":{"healthy":true}}`},
		"the last line counts":      {request{headers: inJSON + "Accept: text/html\nAccept: application/json", body: health}, 200, `{"type":"GET_HEALTH","get_health":{"healthy":true}}`},
		"and not the one before":    {request{headers: inJSON + "Accept: application/json\nAccept: text/html", body: health}, 406, "Expecting 'Accept' to allow " + anyForms},
		"nothing to say is no body": {request{headers: inJSON, body: attach}, 200, ""},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, c.q.make(t))
		if w.Code != c.code || w.Body.String() != c.text {
			t.Errorf("%s: %d %q, want %d %q", name, w.Code, w.Body, c.code, c.text)
		}
		kind := w.Header().Get("Content-Type")
		switch {
		case c.code != 200 && kind != "text/plain; charset=utf-8", c.code == 200 && c.text == "" && kind != "",
			c.code == 200 && strings.HasPrefix(c.text, "{") && kind != "application/json":
			t.Errorf("%s: Content-Type %q", name, kind)
		case c.code == 405 && w.Header().Get("Allow") != "POST":
			t.Errorf("%s: Allow %q", name, w.Header().Get("Allow"))
		}
	}
}

// TestForeignValues: an enum's unknown value is no value, in either form; where one is required the
// message is none.
func TestForeignValues(t *testing.T) {
	var got *mesosagent.Call
	h := &Handler{MaxMessage: 4096, Call: func(_ context.Context, x *Exchange) error { got = x.Call; return nil }}
	post := func(headers, body string) (int, string) {
		got = nil
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request{headers: headers, body: body}.make(t))
		return w.Code, w.Body.String()
	}
	const inProtobuf = "Content-Type: application/x-protobuf\n"
	launch := func(set func(c *mesosv1.ContainerInfo)) string {
		c := &mesosv1.ContainerInfo{Type: mesosv1.ContainerInfo_MESOS.Enum()}
		set(c)
		raw, err := proto.Marshal(&mesosagent.Call{Type: mesosagent.Call_LAUNCH_CONTAINER.Enum(), LaunchContainer: &mesosagent.Call_LaunchContainer{
			ContainerId: &mesosv1.ContainerID{Value: proto.String("a")}, Container: c,
		}})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	for _, c := range []struct{ headers, body, text string }{
		{inProtobuf, "\x08\x20", "Failed to validate agent::Call: Expecting 'type' to be present"}, // 32, of a later Mesos
		{inJSON, `{"type":"MARK_RESOURCE_PROVIDER_GONE"}`, "Failed to validate agent::Call: Expecting 'type' to be present"},
		{inProtobuf, launch(func(c *mesosv1.ContainerInfo) { c.Type = mesosv1.ContainerInfo_Type(77).Enum() }), "Failed to parse body into a protobuf object"},
		{inProtobuf, launch(func(c *mesosv1.ContainerInfo) {
			c.Volumes = []*mesosv1.Volume{{Mode: mesosv1.Volume_Mode(9).Enum(), ContainerPath: proto.String("p")}}
		}), "Failed to parse body into a protobuf object"},
		{inProtobuf, launch(func(c *mesosv1.ContainerInfo) { c.Hostname = proto.String("\xff") }), "Failed to parse body into a protobuf object"},
		{inJSON, `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"a"},"container":{"type":"LXC"}}}`, "Failed to find enum for 'LXC'"},
	} {
		if code, text := post(c.headers, c.body); code != 400 || text != c.text {
			t.Errorf("%.60q: %d %q, want %q", c.body, code, text, c.text)
		}
	}
	body := launch(func(c *mesosv1.ContainerInfo) {
		c.LinuxInfo = &mesosv1.LinuxInfo{EffectiveCapabilities: &mesosv1.CapabilityInfo{Capabilities: []mesosv1.CapabilityInfo_Capability{9999, mesosv1.CapabilityInfo_NET_RAW, 9998}}}
	})
	code, text := post(inProtobuf, body)
	if caps := got.GetLaunchContainer().GetContainer().GetLinuxInfo().GetEffectiveCapabilities().GetCapabilities(); code != 200 || len(caps) != 1 || caps[0] != mesosv1.CapabilityInfo_NET_RAW {
		t.Errorf("of three, one is known: %d %q, %v", code, text, caps)
	}
}

// TestDeepRequests: names ten thousand levels deep cost nothing and are refused, and so is the call
// with the most faults.
func TestDeepRequests(t *testing.T) {
	h := &Handler{MaxMessage: 4 << 20, Call: func(context.Context, *Exchange) error { return nil }}
	nested := func(levels int) string {
		return `{"type":"WAIT_CONTAINER","wait_container":{"container_id":` + strings.Repeat(`{"value":"a","parent":`, levels) + `{"value":"a"}` + strings.Repeat("}", levels) + "}}"
	}
	asProtobuf := func(levels int) string {
		id := &mesosv1.ContainerID{Value: proto.String("a")}
		for range levels {
			id = &mesosv1.ContainerID{Value: proto.String("a"), Parent: id}
		}
		raw, err := proto.Marshal(&mesosagent.Call{Type: mesosagent.Call_WAIT_CONTAINER.Enum(), WaitContainer: &mesosagent.Call_WaitContainer{ContainerId: id}})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	const inProtobuf = "Content-Type: application/x-protobuf\n"
	tooDeep := "Failed to validate agent::Call: 'wait_container.container_id' is invalid: 'ContainerID.parent' is invalid: more than 32 levels"
	for _, c := range []struct{ headers, body, text string }{
		{inJSON, nested(31), ""},
		{inJSON, nested(32), tooDeep},
		{inJSON, nested(97), tooDeep},
		{inJSON, nested(98), "Failed to parse body into JSON: it is nested more than 100 deep"},
		{inJSON, nested(9000), "Failed to parse body into JSON: it is nested more than 100 deep"},
		{inJSON, nested(10000), "Failed to parse body into JSON: "},
		{inJSON, nested(20000), "Failed to parse body into JSON: "},
		{inProtobuf, asProtobuf(31), ""},
		{inProtobuf, asProtobuf(32), tooDeep},
		{inProtobuf, asProtobuf(10000), "Failed to parse body into a protobuf object"},
		{inJSON, `{"type":"PRUNE_IMAGES","prune_images":{"excluded_images":[` + strings.Repeat(`{},`, 100000) + `{}]}}`, "Missing required fields: prune_images.excluded_images[0].type, "},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request{headers: c.headers, body: c.body}.make(t))
		if (w.Code == 200) != (c.text == "") || !strings.HasPrefix(w.Body.String(), c.text) || w.Body.Len() > 8192 {
			t.Errorf("%.60q: %d %.200q (%d bytes), want %q", c.body, w.Code, w.Body, w.Body.Len(), c.text)
		}
	}
}

// TestStreams: the body is framed for every client, and the headers say records only if the client
// asked for them.
func TestStreams(t *testing.T) {
	out := &mesosagent.ProcessIO{Type: mesosagent.ProcessIO_DATA.Enum(), Data: &mesosagent.ProcessIO_Data{Type: mesosagent.ProcessIO_Data_STDOUT.Enum(), Data: []byte("hi")}}
	h := &Handler{MaxMessage: 4096, Call: func(ctx context.Context, x *Exchange) error {
		s, err := x.Stream()
		if err != nil {
			return err
		}
		return errors.Join(s.Send(ctx, out), s.Send(ctx, out), errors.New("too late to say"))
	}}
	asJSON, err := MarshalJSON(out)
	if err != nil {
		t.Fatal(err)
	}
	asProtobuf, err := proto.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	for accept, want := range map[string]struct {
		kind, message string
		record        []byte
	}{
		"Accept: application/recordio": {"application/recordio", "application/json", asJSON},
		"Accept: application/x-protobuf\nAccept: application/recordio\nMessage-Accept: application/x-protobuf": {"application/recordio", "application/x-protobuf", asProtobuf},
		"Accept: application/json":       {"application/json", "", asJSON},
		"Accept: application/x-protobuf": {"application/x-protobuf", "", asProtobuf},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request{headers: inJSON + accept, body: attach}.make(t))
		if w.Code != 200 || w.Header().Get("Content-Type") != want.kind || w.Header().Get("Message-Content-Type") != want.message {
			t.Errorf("%s: %d %v", accept, w.Code, w.Header())
		}
		r := NewRecordReader(w.Body, 4096)
		for range 2 {
			if got, err := r.Next(); err != nil || !bytes.Equal(got, want.record) {
				t.Errorf("%s: %q, %v; want %q", accept, got, err, want.record)
			}
		}
		if rest, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: after the end %q, %v", accept, rest, err)
		}
	}
}

// TestInput: the call reads the records after the first, and the error of an invalid one has Mesos'
// words.
func TestInput(t *testing.T) {
	first := `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"CONTAINER_ID","container_id":{"value":"a"}}}`
	io1 := func(s string) string {
		return `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"PROCESS_IO","process_io":` + s + `}}`
	}
	prefix := "Failed to validate agent::Call: "
	for record, want := range map[string]string{
		io1(`{"type":"DATA","data":{"type":"STDIN","data":""}}`):                                                  "",
		io1(`{"type":"CONTROL","control":{"type":"HEARTBEAT"}}`):                                                  "",
		io1(`{"type":"CONTROL","control":{"type":"TTY_INFO","tty_info":{"window_size":{"rows":1,"columns":2}}}}`): "",
		first:                            prefix + "Expecting 'attach_container_input.type' to be 'PROCESS_IO' instead of: 'CONTAINER_ID'",
		health:                           prefix + "Expecting 'type' to be 'ATTACH_CONTAINER_INPUT' instead of: 'GET_HEALTH'",
		io1(`{}`):                        prefix + "Expecting 'process_io.type' to be present",
		io1(`{"type":"UNKNOWN"}`):        prefix + "'process_io.type' is unknown",
		io1(`{"type":"DATA"}`):           prefix + "Expecting 'process_io.data' to be present",
		io1(`{"type":"DATA","data":{}}`): prefix + "Expecting 'process_io.data.type' to be present",
		io1(`{"type":"DATA","data":{"type":"STDIN"}}`):                                     prefix + "Expecting 'process_io.data.data' to be present",
		io1(`{"type":"DATA","data":{"type":"STDOUT","data":""}}`):                          prefix + "Expecting 'process_io.data.type' to be 'STDIN'",
		io1(`{"type":"CONTROL","control":{"type":"TTY_INFO"}}`):                            prefix + "Expecting 'process_io.control.tty_info' to be present",
		io1(`{"type":"CONTROL","control":{"type":"TTY_INFO","tty_info":{}}}`):              prefix + "Expecting 'tty_info.window_size' to be present",
		io1(`{"type":"CONTROL"}`):                                                          prefix + "Expecting 'process_io.control' to be present",
		io1(`{"type":"CONTROL","control":{}}`):                                             prefix + "Expecting 'process_io.control.type' to be present",
		io1(`{"type":"CONTROL","control":{"type":"UNKNOWN"}}`):                             prefix + "'process_io.control.type' is unknown",
		`{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"PROCESS_IO"}}`: prefix + "Expecting 'attach_container_input.process_io' to be present",
		`[]`: "Expecting a JSON object",
	} {
		h := &Handler{MaxMessage: 4096, Call: func(_ context.Context, x *Exchange) error {
			if _, err := x.Next(); err != nil {
				return err
			}
			if _, err := x.Next(); !errors.Is(err, io.EOF) {
				t.Errorf("%s: then %v", record, err)
			}
			return nil
		}}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request{headers: inRecord, body: records(first, record)}.make(t))
		if w.Body.String() != want || (w.Code == 200) != (want == "") {
			t.Errorf("%s: %d %q, want %q", record, w.Code, w.Body, want)
		}
	}
}

// TestBrokenInput: each break of a stream of input. The records before count; its end in the middle
// of one is an end.
func TestBrokenInput(t *testing.T) {
	first := `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"CONTAINER_ID","container_id":{"value":"a"}}}`
	data := `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"PROCESS_IO","process_io":{"type":"DATA","data":{"type":"STDIN","data":"eA=="}}}}`
	whole := records(data)
	for name, c := range map[string]struct{ rest, want string }{
		"cut in a length":      {"14", ""},
		"cut in a record":      {whole[:len(whole)-1], ""},
		"no length":            {"x" + whole, "Failed to decode length 'x" + whole[:3] + "'"},
		"a length below zero":  {"-1\n", "Failed to decode length '-1'"},
		"two at the same time": {whole[:50] + whole + whole[50:], "Failed to parse body into JSON: "},
		"a length too long":    {"4097\n", "the record is too long: 4097 bytes, at most 4096"},
		"a length beyond all":  {"18446744073709551616\n", "Failed to decode length '18446744073709551616'"},
		"an empty record":      {"0\n", "Failed to parse body into JSON: "},
		"bad base64":           {records(strings.Replace(data, "eA==", "e!==", 1)), "Failed to base64 decode bytes field 'data': "},
		"an enum's unknown":    {records(strings.Replace(data, "STDIN", "STDMID", 1)), "Failed to validate agent::Call: Expecting 'process_io.data.type' to be present"},
	} {
		took := 0
		h := &Handler{MaxMessage: 4096, Call: func(_ context.Context, x *Exchange) error {
			for {
				_, err := x.Next()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				took++
			}
		}}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request{headers: inRecord, body: records(first, data) + c.rest}.make(t))
		code := 400
		if c.want == "" {
			code = 200
		}
		if w.Code != code || !strings.HasPrefix(w.Body.String(), c.want) || took != 1 {
			t.Errorf("%s: %d %q after %d records, want %q", name, w.Code, w.Body, took, c.want)
		}
	}
}

// FuzzRequests: for any bytes, no panic, and an answer that names the side at fault.
func FuzzRequests(f *testing.F) {
	f.Add("application/json", "", []byte(health))
	f.Add("application/recordio", "application/json", []byte(records(health)))
	f.Add("application/x-protobuf", "", []byte("\x08\x01"))
	input := `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":`
	f.Add("application/recordio", "application/json", []byte(records(input+`{"type":"CONTAINER_ID","container_id":{"value":"a"}}}`,
		input+`{"type":"PROCESS_IO","process_io":{"type":"DATA","data":{"type":"STDIN","data":"eA=="}}}}`)))
	f.Fuzz(func(t *testing.T, kind, message string, body []byte) {
		h := &Handler{Call: func(_ context.Context, x *Exchange) (err error) {
			for x.Call.GetType() == mesosagent.Call_ATTACH_CONTAINER_INPUT && err == nil {
				_, err = x.Next()
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}, MaxMessage: 1 << 16}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1", bytes.NewReader(body))
		r.Header.Set("Content-Type", kind)
		if message != "" {
			r.Header.Set("Message-Content-Type", message)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == 200 && w.Body.Len() > 0 || w.Code >= 500 && w.Code != 501 {
			t.Errorf("%d %q", w.Code, w.Body)
		}
	})
}
