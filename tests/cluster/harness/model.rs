//! Writes models as safetensors files, in the form that Python writes them.

use std::path::Path;

use serde_json::{Map, Value, json};

/// Writes a safetensors file with all variables of a job. Every element has the same value.
pub(crate) fn write_model(path: &Path, job: &Value, value: f32) {
    let (mut header, mut end) = (Map::new(), 0);
    for variable in job["graph"]["variables"].as_array().expect("a job has variables") {
        let extents = variable["shape"].as_array().expect("a variable has a shape");
        let elements: u64 =
            extents.iter().map(|extent| extent.as_u64().expect("extents are numbers")).product();
        let name = variable["name"].as_str().expect("a variable has a name");
        let tensor = json!({"dtype": "F32", "shape": extents, "data_offsets": [end, end + elements * 4]});
        header.insert(name.to_owned(), tensor);
        end += elements * 4;
    }
    let header = Value::from(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(value.to_le_bytes().repeat(end as usize / 4));
    std::fs::write(path, bytes).expect("the test's directory can be written");
}
