package solace_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	sempUser     = "admin"
	sempPassword = `s3mp "pass\word" & $HOME ü` //nolint:gosec // opens only the server below
	vpn          = "bill ing"
	configPath   = "/SEMP/v2/config"
)

// definition is what the public specification says of a kind of object.
type definition struct {
	Collection  string               `json:"collection"`
	Identifying []string             `json:"identifying"` // in the order of the address
	WriteOnly   []string             `json:"write_only"`
	Constant    bool                 `json:"constant"` // has nothing that could be changed
	Attributes  map[string]attribute `json:"attributes"`
}

type attribute struct {
	Type    string   `json:"type"`
	Default any      `json:"default"`
	Enum    []string `json:"enum"`
	Minimum float64  `json:"minimum"`
	Maximum float64  `json:"maximum"`
}

// definitions reads the pinned part of the specification, by collection.
func definitions(t *testing.T) map[string]definition {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "semp-v2-config.json"))
	require.NoError(t, err)
	var file struct {
		Source  string                `json:"source"`
		Objects map[string]definition `json:"objects"`
	}
	require.NoError(t, json.Unmarshal(raw, &file))
	require.NotEmpty(t, file.Source)
	byCollection := map[string]definition{}
	for _, object := range file.Objects {
		byCollection[object.Collection] = object
	}
	return byCollection
}

// refuses says what is wrong with a value, or nothing.
func (a attribute) refuses(value any) string {
	switch value := value.(type) {
	case string:
		if a.Type != "string" || len(a.Enum) > 0 && !slices.Contains(a.Enum, value) {
			return fmt.Sprintf("%q is not allowed", value)
		}
	case bool:
		if a.Type != "boolean" {
			return "a boolean is not allowed"
		}
	case float64:
		if a.Type != "integer" || value < a.Minimum || value > a.Maximum {
			return fmt.Sprintf("%v is not allowed", value)
		}
	default:
		return fmt.Sprintf("%T is not allowed", value)
	}
	return ""
}

type object map[string]any

// broker answers SEMP v2's config API over real HTTP and keeps what it was told. It knows the attributes of the pinned
// specification and nothing else; it proves nothing about what a real broker does with them.
type broker struct {
	t       *testing.T
	url     string
	defined map[string]definition

	mu       sync.Mutex
	objects  map[string]object // by address below the VPN, escaped
	made     map[string]object // what POST brought, by address
	requests []string          // method and address, in order
	// intercept is called with mu held; it answers and returns true, or changes the state and returns false.
	intercept func(w http.ResponseWriter, r *http.Request, address string) bool
}

func startBroker(t *testing.T) *broker {
	t.Helper()
	b := &broker{t: t, defined: definitions(t), objects: map[string]object{}, made: map[string]object{}}
	b.objects[""] = b.withDefaults("msgVpns", object{
		"msgVpnName": vpn, "enabled": true, "authenticationBasicType": "internal",
	})
	// Every VPN has these; the broker's own and the default profile allow everything.
	for _, name := range []string{"default", "#acl-profile"} {
		b.put("aclProfiles", object{
			"aclProfileName": name, "clientConnectDefaultAction": "allow",
			"publishTopicDefaultAction": "allow", "subscribeTopicDefaultAction": "allow",
		})
	}
	b.put("clientProfiles", object{"clientProfileName": "default"})
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	b.url = server.URL
	return b
}

func (b *broker) withDefaults(collection string, given object) object {
	complete := object{}
	for name, attribute := range b.defined[collection].Attributes {
		if attribute.Default != nil {
			complete[name] = attribute.Default
		}
	}
	maps.Copy(complete, given)
	return complete
}

// put makes an object as an operator would; collection is its address below the VPN.
func (b *broker) put(collection string, given object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.putLocked(collection, given)
}

// change changes an object as an operator would.
func (b *broker) change(address string, attributes object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.Copy(b.objects[address], attributes)
}

func (b *broker) putLocked(collection string, given object) {
	kind := collection[strings.LastIndex(collection, "/")+1:]
	b.objects[collection+"/"+b.identifier(kind, given)] = b.withDefaults(kind, given)
}

// meddle lets see every request before it is answered; nil lets be.
func (b *broker) meddle(see func(w http.ResponseWriter, r *http.Request, address string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.intercept = see
}

func (b *broker) identifier(kind string, of object) string {
	var parts []string
	for _, name := range b.defined[kind].Identifying {
		parts = append(parts, escape(fmt.Sprint(of[name])))
	}
	return strings.Join(parts, ",")
}

// escape percent-encodes all but RFC 3986's unreserved characters, as SEMP asks for.
func escape(s string) string {
	return strings.ReplaceAll(url.QueryEscape(s), "+", "%20")
}

// state is a copy of all objects.
func (b *broker) state() map[string]object {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]object{}
	for address, o := range b.objects {
		all[address] = maps.Clone(o)
	}
	return all
}

// asked are all requests so far: method and address.
func (b *broker) asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

// writes are those that are no GET.
func (b *broker) writes() []string {
	return slices.DeleteFunc(b.asked(), func(r string) bool { return strings.HasPrefix(r, "GET ") })
}

func (b *broker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	address, ours := strings.CutPrefix(r.URL.EscapedPath(), configPath+"/msgVpns/"+escape(vpn))
	b.requests = append(b.requests, r.Method+" "+address)
	if b.intercept != nil && b.intercept(w, r, address) {
		return
	}
	user, password, _ := r.BasicAuth()
	switch {
	case user != sempUser || password != sempPassword:
		refuse(w, http.StatusUnauthorized, 72, "UNAUTHORIZED", "Unauthorized user or password.")
	case !ours:
		refuse(w, http.StatusBadRequest, 6, "NOT_FOUND", "Could not find match for VPN.")
	case r.Method == http.MethodGet:
		b.get(w, r, strings.TrimPrefix(address, "/"))
	default:
		b.write(w, r, strings.TrimPrefix(address, "/"))
	}
}

func (b *broker) get(w http.ResponseWriter, r *http.Request, address string) {
	kind := kindOf(address)
	selected := strings.Split(r.URL.Query().Get("select"), ",")
	for _, name := range selected {
		if _, known := b.defined[kind].Attributes[name]; !known {
			refuse(w, http.StatusBadRequest, 11, "INVALID_PARAMETER", "unknown attribute in select: "+name)
			return
		}
	}
	choose := func(from object) object {
		chosen := object{}
		for _, name := range selected {
			if value, has := from[name]; has && !slices.Contains(b.defined[kind].WriteOnly, name) {
				chosen[name] = value
			}
		}
		return chosen
	}
	if !isCollection(address) {
		o, exists := b.objects[address]
		if !exists {
			refuse(w, http.StatusBadRequest, 6, "NOT_FOUND", "Could not find match for "+address+".")
			return
		}
		answer(w, http.StatusOK, object{"data": choose(o), "meta": object{"responseCode": 200}})
		return
	}
	b.list(w, r, address, choose)
}

// list answers with one page of a collection; where takes one comparison by equality.
func (b *broker) list(w http.ResponseWriter, r *http.Request, collection string, choose func(object) object) {
	name, value, filtered := strings.Cut(r.URL.Query().Get("where"), "==")
	limit, err := strconv.Atoi(r.URL.Query().Get("count"))
	if err != nil {
		limit = 10
	}
	list := []object{}
	meta := object{"responseCode": 200}
	for _, address := range slices.Sorted(maps.Keys(b.objects)) {
		o := b.objects[address]
		if parent := address[:max(strings.LastIndex(address, "/"), 0)]; parent != collection || filtered && o[name] != value {
			continue
		}
		if len(list) == limit {
			meta["paging"] = object{"cursorQuery": "x", "nextPageUri": b.url + r.URL.Path + "?cursor=x"}
			break
		}
		list = append(list, choose(o))
	}
	answer(w, http.StatusOK, object{"data": list, "meta": meta})
}

func (b *broker) write(w http.ResponseWriter, r *http.Request, address string) {
	given := object{}
	if err := json.NewDecoder(r.Body).Decode(&given); err != nil {
		refuse(w, http.StatusBadRequest, 27, "PARSE_ERROR", err.Error())
		return
	}
	kind := kindOf(address)
	for name, value := range given {
		attribute, known := b.defined[kind].Attributes[name]
		if why := attribute.refuses(value); !known || why != "" {
			refuse(w, http.StatusBadRequest, 11, "INVALID_PARAMETER", "unknown attribute or value of "+name+": "+why)
			return
		}
		if isReference := name == "aclProfileName" || name == "clientProfileName"; isReference && kind == "clientUsernames" {
			if _, exists := b.objects[strings.TrimSuffix(name, "Name")+"s/"+escape(fmt.Sprint(value))]; !exists {
				refuse(w, http.StatusBadRequest, 6, "NOT_FOUND", "Could not find match for "+name+".")
				return
			}
		}
	}
	switch {
	case r.Method == http.MethodPost && isCollection(address):
		b.create(w, address, kind, given)
	case b.objects[address] == nil:
		refuse(w, http.StatusBadRequest, 6, "NOT_FOUND", "Could not find match for "+address+".")
	case r.Method == http.MethodPatch && !b.defined[kind].Constant:
		maps.Copy(b.objects[address], given)
		answer(w, http.StatusOK, object{"data": b.objects[address], "meta": object{"responseCode": 200}})
	case r.Method == http.MethodPut && !b.defined[kind].Constant:
		b.objects[address] = b.withDefaults(kind, given)
		answer(w, http.StatusOK, object{"data": b.objects[address], "meta": object{"responseCode": 200}})
	default:
		refuse(w, http.StatusMethodNotAllowed, 14, "NOT_SUPPORTED", r.Method)
	}
}

func (b *broker) create(w http.ResponseWriter, collection, kind string, given object) {
	for _, name := range b.defined[kind].Identifying {
		if given[name] == nil {
			refuse(w, http.StatusBadRequest, 228, "MISSING_PARAMETER", name+" is missing")
			return
		}
	}
	if parent := collection[:max(strings.LastIndex(collection, "/"), 0)]; b.objects[parent] == nil {
		refuse(w, http.StatusBadRequest, 6, "NOT_FOUND", "Could not find match for "+parent+".")
		return
	}
	address := collection + "/" + b.identifier(kind, given)
	if b.objects[address] != nil {
		refuse(w, http.StatusBadRequest, 10, "ALREADY_EXISTS", "Object "+address+" already exists.")
		return
	}
	b.objects[address], b.made[address] = b.withDefaults(kind, given), given
	answer(w, http.StatusOK, object{"data": b.objects[address], "meta": object{"responseCode": 200}})
}

// isCollection: addresses alternate between collections and objects.
func isCollection(address string) bool { return address != "" && strings.Count(address, "/")%2 == 0 }

func kindOf(address string) string {
	if address == "" {
		return "msgVpns"
	}
	parts := strings.Split(address, "/")
	return parts[(len(parts)-1)/2*2]
}

func refuse(w http.ResponseWriter, status, code int, word, description string) {
	answer(w, status, object{"meta": object{
		"error":        object{"code": code, "description": description, "status": word},
		"request":      object{"method": "", "uri": ""},
		"responseCode": status,
	}})
}

// answer writes JSON the way a broker does, indented.
func answer(w http.ResponseWriter, status int, body object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "    ")
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(body)
}
