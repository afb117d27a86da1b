package auth

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

func parse(t *testing.T, text string) *Rules {
	t.Helper()
	r, err := ParseRules([]byte(text), users)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r
}

// users are those of the node.
func users(name string) (uint32, bool) {
	uid, ok := map[string]uint32{"web": 1000, "guest": 1001, "toor": 0, "1002": 7}[name]
	return uid, ok
}

func call(t *testing.T, text string) *mesosagent.Call {
	t.Helper()
	var c mesosagent.Call
	if err := api.UnmarshalJSON([]byte(text), &c); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return &c
}

// calls are one of each, by the actions they take; "" for those that all may make.
var calls = map[string]string{
	`{"type":"GET_HEALTH"}`:     "",
	`{"type":"GET_STATE"}`:      "",
	`{"type":"GET_CONTAINERS"}`: "",
	`{"type":"GET_FLAGS"}`:      "view_flags",
	`{"type":"SET_LOGGING_LEVEL","set_logging_level":{"level":1,"duration":{"nanoseconds":1}}}`: "set_log_level",
	`{"type":"LIST_FILES","list_files":{"path":"/"}}`:                                           "access_sandboxes",
	`{"type":"READ_FILE","read_file":{"path":"/","offset":0}}`:                                  "access_sandboxes",
	`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":ROOT}}`:                      "launch_standalone_containers",
	`{"type":"WAIT_CONTAINER","wait_container":{"container_id":ROOT}}`:                          "wait_standalone_containers",
	`{"type":"KILL_CONTAINER","kill_container":{"container_id":ROOT}}`:                          "kill_standalone_containers",
	`{"type":"REMOVE_CONTAINER","remove_container":{"container_id":ROOT}}`:                      "remove_standalone_containers",
	`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":CHILD}}`:                     "launch_nested_containers_as_user launch_nested_containers_under_parent_with_user",
	`{"type":"WAIT_CONTAINER","wait_container":{"container_id":CHILD}}`:                         "wait_nested_containers",
	`{"type":"KILL_CONTAINER","kill_container":{"container_id":CHILD}}`:                         "kill_nested_containers",
	`{"type":"REMOVE_CONTAINER","remove_container":{"container_id":CHILD}}`:                     "remove_nested_containers",
	`{"type":"LAUNCH_NESTED_CONTAINER","launch_nested_container":{"container_id":CHILD}}`:       "launch_nested_containers_as_user launch_nested_containers_under_parent_with_user",
	`{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"container_id":CHILD}}`:           "wait_nested_containers",
	`{"type":"KILL_NESTED_CONTAINER","kill_nested_container":{"container_id":CHILD}}`:           "kill_nested_containers",
	`{"type":"REMOVE_NESTED_CONTAINER","remove_nested_container":{"container_id":CHILD}}`:       "remove_nested_containers",
	`{"type":"LAUNCH_NESTED_CONTAINER_SESSION","launch_nested_container_session":{"container_id":CHILD}}`: "launch_nested_container_sessions_as_user " +
		"launch_nested_container_sessions_under_parent_with_user",
	`{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"CONTAINER_ID","container_id":CHILD}}`:       "attach_containers_input",
	`{"type":"ATTACH_CONTAINER_OUTPUT","attach_container_output":{"container_id":CHILD}}`:                           "attach_containers_output",
	`{"type":"ADD_RESOURCE_PROVIDER_CONFIG","add_resource_provider_config":{"info":{"type":"t","name":"n"}}}`:       "modify_resource_provider_configs",
	`{"type":"UPDATE_RESOURCE_PROVIDER_CONFIG","update_resource_provider_config":{"info":{"type":"t","name":"n"}}}`: "modify_resource_provider_configs",
	`{"type":"REMOVE_RESOURCE_PROVIDER_CONFIG","remove_resource_provider_config":{"type":"t","name":"n"}}`:          "modify_resource_provider_configs",
	`{"type":"PRUNE_IMAGES"}`: "prune_images",
}

// TestEachCallTakesItsActions: a refusal of one of them refuses the call, and no other refusal
// does.
func TestEachCallTakesItsActions(t *testing.T) {
	ids := strings.NewReplacer("ROOT", `{"value":"a"}`, "CHILD", `{"value":"b","parent":{"value":"a"}}`)
	var all []string
	for a := range objectNames() {
		all = append(all, string(a))
	}
	for text, actions := range calls {
		c := call(t, ids.Replace(text))
		var none *Rules
		if !none.Allow(Principal{Name: "ops"}, c) || !parse(t, `{}`).Allow(Principal{Name: "ops"}, c) {
			t.Errorf("%s is refused without rules", text)
		}
		if got := parse(t, `{"permissive":false}`).Allow(Principal{Name: "ops"}, c); got != (actions == "") {
			t.Errorf("%s: %v where nothing is allowed", text, got)
		}
		for _, a := range all {
			r := parse(t, `{"`+a+`":[{"principals":{"values":["guest"]},"`+objectNames()[action(a)]+`":{"type":"NONE"}}]}`)
			if got := r.Allow(Principal{Name: "guest"}, c); got == strings.Contains(" "+actions+" ", " "+a+" ") {
				t.Errorf("%s: %v for whom %s is refused", text, got, a)
			}
			if !r.Allow(Principal{Name: "ops"}, c) {
				t.Errorf("%s is refused to who is not meant", text)
			}
		}
	}
}

// TestTheFirstRuleThatMatchesHolds, as with Mesos, users and all.
func TestTheFirstRuleThatMatchesHolds(t *testing.T) {
	r := parse(t, `{"permissive":false,
		"launch_nested_containers_under_parent_with_user":[{"principals":{"type":"ANY"},"users":{"type":"ANY"}}],
		"launch_nested_containers_as_user":[
			{"principals":{"values":["ops"]},"users":{"type":"ANY"}},
			{"principals":{"values":["dev","ci"]},"users":{"type":"SOME","values":["web"]}},
			{"principals":{"type":"NONE"},"users":{"values":["web"]}},
			{"principals":{"type":"ANY"},"users":{"values":["guest"]}}]}`)
	launch := func(user string) *mesosagent.Call {
		if user != "" {
			user = `,"command":{"user":"` + user + `"}`
		}
		return call(t, `{"type":"LAUNCH_NESTED_CONTAINER","launch_nested_container":{"container_id":{"value":"b","parent":{"value":"a"}}`+user+`}}`)
	}
	for _, c := range []struct {
		who, asked string
		uid        uint32
		want       bool
	}{
		{"ops", "root", 0, true},
		{"ops", "", 0, true},
		{"ops", "0:0", 0, true},
		{"dev", "web", 1000, true},
		{"ci", "web", 1000, true},
		{"ci", "", 1000, true},
		{"ci", "1000", 1000, true},
		{"dev", "root", 0, false},
		{"dev", "", 0, false},
		{"dev", "guest", 1001, true},
		{"dev", "other", 1002, false},
		{"x", "web", 1000, false},
		{"x", "guest", 1001, true},
		{"x", "", 0, false},
		{"any one", "guest", 1001, true},
		// An image's names for them do not count.
		{"dev", "web", 0, false},
		{"dev", "web", 1002, false},
		{"dev", "alice", 0, false},
		{"dev", "root", 1000, true},
		{"x", "guest", 1000, false},
		{"dev", "+0", 0, false},
		{"dev", "00", 0, false},
		// A group is another right.
		{"dev", "web:0", 1000, false},
		{"dev", "1000:shadow", 1000, false},
		{"x", "guest:guest", 1001, false},
	} {
		if got := r.AllowUser(Principal{Name: c.who}, launch(c.asked), c.uid); got != c.want {
			t.Errorf("%s as %q, which is %d: %v", c.who, c.asked, c.uid, got)
		}
		if grouped := strings.Contains(c.asked, ":"); !grouped && !r.Allow(Principal{Name: c.who}, launch(c.asked)) {
			t.Errorf("%s as %q is refused before it is known which user that is", c.who, c.asked)
		}
	}
	closed := parse(t, `{"permissive":false,"launch_nested_containers_under_parent_with_user":[{"principals":{"type":"ANY"},"users":{"type":"ANY"}}],
		"launch_nested_containers_as_user":[{"principals":{"values":["ops"]},"users":{"values":["root"]}},{"principals":{"values":["dev"]},"users":{"type":"NONE"}}]}`)
	for who, want := range map[string]bool{"ops": true, "dev": false, "x": false} {
		if got := closed.Allow(Principal{Name: who}, launch("0")); got != want {
			t.Errorf("%s, of whom no user is known yet: %v", who, got)
		}
	}
}

// TestRootIsRoot: uid 0 is root, under any name.
func TestRootIsRoot(t *testing.T) {
	launch := call(t, `{"type":"LAUNCH_NESTED_CONTAINER","launch_nested_container":{"container_id":{"value":"b","parent":{"value":"a"}},"command":{"user":"alice"}}}`)
	for _, name := range []string{"root", "0", "toor"} {
		deny := parse(t, `{"launch_nested_containers_as_user":[{"principals":{"type":"NONE"},"users":{"values":["`+name+`"]}}]}`)
		if deny.AllowUser(Principal{Name: "dev"}, launch, 0) || !deny.AllowUser(Principal{Name: "dev"}, launch, 1000) {
			t.Errorf("what is not for %s", name)
		}
	}
	for _, name := range []string{"alice", "+0", "00", "4294967295", "4294967296", "-1", "", " 0", "0x0"} {
		if _, err := ParseRules([]byte(`{"launch_nested_containers_as_user":[{"principals":{"type":"ANY"},"users":{"values":["`+name+`"]}}]}`), users); !errdefs.IsInvalidArgument(err) {
			t.Errorf("a rule of user %q, whom nobody knows: %v", name, err)
		}
	}
}

// TestWhatIsNotSeenIsNotShown: of each list, only the objects of the refused action go.
func TestWhatIsNotSeenIsNotShown(t *testing.T) {
	const answer = `{"get_containers":{"containers":[{"container_id":{"value":"a"}},{"container_id":{"value":"b","parent":{"value":"a"}}},` +
		`{"framework_id":{"value":"f"},"container_id":{"value":"c"}}]},"get_frameworks":FRAMEWORKS,"get_executors":EXECUTORS,"get_tasks":TASKS,` +
		`"get_state":{"get_frameworks":FRAMEWORKS,"get_executors":EXECUTORS,"get_tasks":TASKS}}`
	const task = `{"name":"t","task_id":{"value":"t"},"framework_id":{"value":"f"},"agent_id":{"value":"a"},"state":"TASK_RUNNING"}`
	text := strings.NewReplacer("FRAMEWORKS", `{"frameworks":[{"framework_info":{"user":"u","name":"n"}}],"completed_frameworks":[{"framework_info":{"user":"u","name":"n"}}]}`,
		"EXECUTORS", `{"executors":[{"executor_info":{"executor_id":{"value":"e"}}}],"completed_executors":[{"executor_info":{"executor_id":{"value":"e"}}}]}`,
		"TASKS", `{"pending_tasks":[`+task+`],"queued_tasks":[`+task+`],"launched_tasks":[`+task+`],"terminated_tasks":[`+task+`],"completed_tasks":[`+task+`]}`).Replace(answer)
	seen := func(r *Rules) string {
		var resp mesosagent.Response
		if err := api.UnmarshalJSON([]byte(text), &resp); err != nil {
			t.Fatal(err)
		}
		r.Filter(Principal{Name: "guest"}, &resp)
		var s []string
		for _, c := range resp.GetGetContainers().GetContainers() {
			s = append(s, c.GetContainerId().GetValue())
		}
		count := func(f *mesosagent.Response_GetFrameworks, e *mesosagent.Response_GetExecutors, k *mesosagent.Response_GetTasks) {
			s = append(s, fmt.Sprint(len(f.GetFrameworks())+len(f.GetCompletedFrameworks()), len(e.GetExecutors())+len(e.GetCompletedExecutors()),
				len(k.GetPendingTasks())+len(k.GetQueuedTasks())+len(k.GetLaunchedTasks())+len(k.GetTerminatedTasks())+len(k.GetCompletedTasks())))
		}
		count(resp.GetGetFrameworks(), resp.GetGetExecutors(), resp.GetGetTasks())
		count(resp.GetGetState().GetGetFrameworks(), resp.GetGetState().GetGetExecutors(), resp.GetGetState().GetGetTasks())
		return strings.Join(s, " ")
	}
	for a, want := range map[string]string{
		"view_flags": "a b c 2 2 5 2 2 5", "view_containers": "a 2 2 5 2 2 5", "view_standalone_containers": "b c 2 2 5 2 2 5", "view_frameworks": "a b c 0 0 0 0 0 0",
		"view_executors": "a b c 2 0 5 2 0 5", "view_tasks": "a b c 2 2 0 2 2 0",
	} {
		r := parse(t, `{"`+a+`":[{"principals":{"values":["guest"]},"`+objectNames()[action(a)]+`":{"type":"NONE"}}]}`)
		if got := seen(r); got != want {
			t.Errorf("without %s: %s, want %s", a, got, want)
		}
	}
	if got := seen(nil); got != "a b c 2 2 5 2 2 5" {
		t.Errorf("without rules: %s", got)
	}
	if got := seen(parse(t, `{"permissive":false}`)); got != "0 0 0 0 0 0" {
		t.Errorf("where nothing is allowed: %s", got)
	}
}

// TestRulesForClaims: a nameless token may make an executor's or a resource provider's calls on its
// own containers, under any rules for names.
func TestRulesForClaims(t *testing.T) {
	const prefixed = `{"value":"csi-1"}`
	ids := strings.NewReplacer("ROOT", `{"value":"a"}`, "CHILD", `{"value":"c","parent":{"value":"b","parent":{"value":"a"}}}`, "PREFIXED", prefixed)
	executors := "launch_nested_containers_as_user wait_nested_containers kill_nested_containers remove_nested_containers launch_nested_container_sessions_as_user attach_containers_output"
	providers := "launch_standalone_containers wait_standalone_containers kill_standalone_containers remove_standalone_containers"
	rules := []*Rules{parse(t, `{"permissive":true}`), parse(t, `{"permissive":false}`)}
	for text, actions := range calls {
		first, _, _ := strings.Cut(actions, " ")
		for who, allowed := range map[string]string{
			`{"cid":"a"}`: executors, `{"cid":"a","cid_prefix":"csi-"}`: executors + " " + providers, `{"cid_prefix":"csi-"}`: providers,
			`{"cid":"b"}`: "", `{"cid":""}`: "", `{"sub":"ops"}`: "", `{}`: "", `{"cid_prefix":"csi-2"}`: "",
		} {
			var claims map[string]string
			if err := json.Unmarshal([]byte(who), &claims); err != nil {
				t.Fatal(err)
			}
			c := call(t, ids.Replace(strings.Replace(text, "ROOT", "PREFIXED", 1)))
			want := actions == "" || strings.Contains(" "+allowed+" ", " "+first+" ")
			for _, r := range rules {
				if got := r.Allow(Principal{Claims: claims}, c); got != want {
					t.Errorf("%s by %s: %v (permissive %v)", text, who, got, r.permissive)
				}
			}
			if none := (*Rules)(nil); !none.Allow(Principal{Claims: claims}, c) {
				t.Errorf("%s by %s is refused without rules", text, who)
			}
		}
	}
	for claim, want := range map[string]string{"csi-": "csi-1", "": "a csi-1", "x": ""} {
		resp := &mesosagent.Response{}
		if err := api.UnmarshalJSON([]byte(`{"get_containers":{"containers":[{"container_id":{"value":"a"}},{"container_id":{"value":"csi-2","parent":`+prefixed+`}},{"container_id":`+prefixed+`}]},`+
			`"get_frameworks":{"frameworks":[{"framework_info":{"user":"u","name":"n"}}]}}`), resp); err != nil {
			t.Fatal(err)
		}
		rules[0].Filter(Principal{Claims: map[string]string{"cid": "a", "cid_prefix": claim}}, resp)
		var seen []string
		for _, c := range resp.GetGetContainers().GetContainers() {
			seen = append(seen, c.GetContainerId().GetValue())
		}
		if got := strings.Join(seen, " "); got != want || len(resp.GetGetFrameworks().GetFrameworks()) != 0 {
			t.Errorf("%q sees %q and %v, want %q", claim, got, resp.GetGetFrameworks(), want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                     "EOF",
		`[]`:                   "cannot unmarshal array",
		`{} {}`:                "more follows",
		`{"permissive":"yes"}`: "permissive: ",
		`{"permissive":true,}`: "invalid character",
		`{"run_tasks":[]}`:     "run_tasks: this agent asks for no such rule",
		`{"view_flags":{}}`:    "view_flags: ",
		`{"view_flags":[{}]}`:  "view_flags: a rule has principals and flags",
		`{"view_flags":[{"principals":{"type":"ANY"},"users":{"type":"ANY"}}]}`:                        "a rule has principals and flags",
		`{"view_flags":[{"principals":{"type":"ANY"},"flags":{"type":"ANY"},"x":{}}]}`:                 "a rule has principals and flags",
		`{"view_flags":[{"principals":{"type":"ALL"},"flags":{"type":"ANY"}}]}`:                        `unknown type "ALL"`,
		`{"view_flags":[{"principals":{"type":"ANY"},"flags":{"values":["work_dir"]}}]}`:               "flags may be ANY or NONE only",
		`{"view_flags":[{"principals":{"type":"ANY","valves":[]},"flags":{"type":"ANY"}}]}`:            "unknown field",
		`{"launch_standalone_containers":[{"principals":{"type":"ANY"},"users":{"values":["root"]}}]}`: "users may be ANY or NONE only",
	} {
		if _, err := ParseRules([]byte(text), users); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// FuzzParse: no file makes it panic, and an accepted rule allows no more than it says.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"permissive":false,"view_flags":[{"principals":{"values":["ops"]},"flags":{"type":"ANY"}}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := ParseRules(raw, users)
		if err != nil {
			return
		}
		if c := call(t, `{"type":"GET_FLAGS"}`); !r.permissive && len(r.rules[viewFlags]) == 0 && r.Allow(Principal{Name: "ops"}, c) {
			t.Errorf("%s allows what it does not say", raw)
		}
	})
}
