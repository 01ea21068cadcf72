const url = $url;
const put = value =>
  fetch(url, { method: "PUT", body: JSON.stringify(value) });
put({ text: "hello", at: { ".sv": "timestamp" } });
const events = new EventSource($stream);
for (const type of ["put", "patch"])
  events.addEventListener(type, event => {
    const { path, data } = JSON.parse(event.data);
    console.log(type, path, data);
  });
